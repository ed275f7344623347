// The page without this script is complete; it adds the theme switch, the menu on a phone,
// fewer stops for the keyboard, the part being read in a page's contents, and a copy button on code.
(function () {
  "use strict";
  const root = document.documentElement;

  const theme = document.querySelector("button.theme");
  const show = () => theme.setAttribute("aria-pressed", String(root.dataset.theme === "dark"));
  show();
  theme.addEventListener("click", () => {
    root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("theme", root.dataset.theme); } catch (blocked) { /* this page only */ }
    show();
  });

  const menu = document.querySelector("button.menu");
  const open = (yes) => {
    root.classList.toggle("menu-open", yes);
    menu.setAttribute("aria-expanded", String(yes));
  };
  menu.addEventListener("click", () => open(menu.getAttribute("aria-expanded") !== "true"));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && root.classList.contains("menu-open")) {
      open(false);
      menu.focus();
    }
  });

  // A box that might scroll is a stop for the Tab key; one that does not is none. While something
  // lies beyond its right edge, it shows that. Sizes change with the window, and with a <details>
  // that opens.
  const look = (box) => {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
    box.classList.toggle("more", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
  };
  const watch = new ResizeObserver((changes) => changes.forEach((change) => look(change.target)));
  for (const box of document.querySelectorAll(".lesson-scroll, .highlight > pre")) {
    watch.observe(box);
    box.addEventListener("scroll", () => look(box), { passive: true });
  }

  // The part being read is the last section that has begun above the upper third of the window.
  const links = [...document.querySelectorAll(".on-page a, .contents a")];
  const parts = [...document.querySelectorAll("article section[id]")];
  const inView = new Set();
  const reader = new IntersectionObserver((changes) => {
    for (const { target, isIntersecting } of changes) {
      if (isIntersecting) inView.add(target);
      else inView.delete(target);
    }
    const now = parts.filter((part) => inView.has(part)).pop();
    for (const link of links) {
      if (now && link.hash === `#${now.id}`) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  }, { rootMargin: "-33% 0px -66% 0px" });
  parts.forEach((part) => reader.observe(part));

  if (!navigator.clipboard) return;
  for (const pre of document.querySelectorAll(".highlight > pre")) {
    const text = pre.textContent;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    pre.parentNode.append(button);
  }
})();

// Attention of a few queries over many keys, as in decoding: float32, and nothing is split.
//
// Each key is read for ROWS query rows at most, so what counts is the reading. A group of lanes has
// a whole key, 4 of its d numbers a lane, and reads it next to those of the others; no launch comes
// before this one. Each group has its own keys, and its own online softmax; at the end the groups
// of a block merge. Rows are the queries of all heads that share K and V.

#ifndef WIDTH
#define WIDTH 64
#endif
#ifndef ROWS
#define ROWS 1
#endif

constexpr int D = WIDTH;            // columns that lanes are there for; d of them are the head's
constexpr int WARPS = 8;
constexpr int THREADS = 32 * WARPS;
constexpr int LANES = D / 4;        // of a group
constexpr int GROUPS = 32 / LANES;  // of a warp
constexpr int AHEAD = ROWS > 2 ? 4 : 8;         // keys that a group reads at once
constexpr int APART = WARPS * GROUPS;           // keys from one of a group to its next
constexpr unsigned FULL = 0xffffffffu;
constexpr float LOG2E = 1.4426950408889634f;
constexpr float LN2 = 0.6931471805599453f;

static_assert(D == 64 || D == 128, "WIDTH must be 64 or 128");
static_assert(4 * WARPS * ROWS * (D + 2) <= 48 * 1024, "the warps' parts must fit");

// 2^x to 2 units in the last place; a result below 2^-126 is 0.
__device__ float exp2Fast(float x)
{
#ifdef __CUDA_ARCH__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}

// m, or 0 where it is -inf.
__device__ float finite(float m) { return m == __int_as_float(0xff800000) ? 0.0f : m; }

// How many keys a query sees. They are the first ones.
__device__ int seenBy(int query, int queries, int keys, int end, int causal)
{
    return causal ? max(min(end, query + 1 + keys - queries), 0) : end;
}

// A part (m, l, o) and another one become one; o is 4 of a row's columns.
__device__ void merge(float& m, float& l, float4& o, float mIts, float lIts, float4 its)
{
    const float mNew = fmaxf(m, mIts);
    const float ours = exp2Fast(m - finite(mNew)), theirs = exp2Fast(mIts - finite(mNew));
    m = mNew;
    l = l * ours + lIts * theirs;
    o.x = o.x * ours + its.x * theirs;
    o.y = o.y * ours + its.y * theirs;
    o.z = o.z * ours + its.z * theirs;
    o.w = o.w * ours + its.w * theirs;
}

// Assumes blockDim = 256, gridDim = (batch * kv heads, splits), group * queries at most ROWS. What
// o, lse and lengths are, and what is left where splits > 1, is as in attend.cu.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
decode(const float* q, const float* k, const float* v, const int* lengths, float* o, float* lse,
       int queries, int keys, int d, int kvHeads, int group, int causal, float scale)
{
    __shared__ float parts[WARPS][ROWS][D + 2];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int column = lane % LANES * 4, mine = warp * GROUPS + lane / LANES;   // of all groups
    const int entry = blockIdx.x / kvHeads, rows = group * queries;
    const int end = lengths ? lengths[entry] : keys;
    const int all = seenBy(queries - 1, queries, keys, end, causal);
    const int first = (int)((long long)all * blockIdx.y / gridDim.y);    // keys of this split
    const int last = (int)((long long)all * (blockIdx.y + 1) / gridDim.y);
    const bool inside = column < d;
    q += (size_t)blockIdx.x * rows * d;          // heads that share K and V follow each other
    k += (size_t)blockIdx.x * keys * d + column;
    v += (size_t)blockIdx.x * keys * d + column;

    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float4 x[ROWS], acc[ROWS];
    float m[ROWS], l[ROWS];
    int seen[ROWS];
    #pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int row = min(r, rows - 1);
        x[r] = inside ? *(const float4*)(q + (size_t)row * d + column) : zero;
        x[r] = make_float4(x[r].x * scale * LOG2E, x[r].y * scale * LOG2E, x[r].z * scale * LOG2E,
                           x[r].w * scale * LOG2E);
        acc[r] = zero;
        m[r] = __int_as_float(0xff800000);       // -inf: nothing yet
        l[r] = 0.0f;
        seen[r] = seenBy(row % queries, queries, keys, end, causal);
    }

    #pragma unroll 1
    for (int base = first; base < last; base += APART * AHEAD) {
        const int key0 = base + mine;
        float4 kMine[AHEAD], vMine[AHEAD];
        #pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            const int key = key0 + i * APART;
            const bool there = inside && key < last;
            kMine[i] = there ? *(const float4*)(k + (size_t)key * d) : zero;
            vMine[i] = there ? *(const float4*)(v + (size_t)key * d) : zero;
        }
        #pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            float s[AHEAD], top = m[r];
            #pragma unroll
            for (int i = 0; i < AHEAD; ++i) {
                s[i] = x[r].x * kMine[i].x + x[r].y * kMine[i].y + x[r].z * kMine[i].z
                       + x[r].w * kMine[i].w;
                #pragma unroll
                for (int offset = 1; offset < LANES; offset *= 2)
                    s[i] += __shfl_xor_sync(FULL, s[i], offset);
                if (key0 + i * APART >= min(last, seen[r]))
                    s[i] = __int_as_float(0xff800000);
                top = fmaxf(top, s[i]);
            }
            const float shrink = exp2Fast(m[r] - finite(top));
            m[r] = top;
            l[r] *= shrink;
            acc[r] = make_float4(acc[r].x * shrink, acc[r].y * shrink, acc[r].z * shrink,
                                 acc[r].w * shrink);
            #pragma unroll
            for (int i = 0; i < AHEAD; ++i) {
                // Not where the key is not seen: 0 times NaN would be NaN.
                if (key0 + i * APART >= min(last, seen[r]))
                    continue;
                const float p = exp2Fast(s[i] - finite(top));
                l[r] += p;
                acc[r].x += p * vMine[i].x;
                acc[r].y += p * vMine[i].y;
                acc[r].z += p * vMine[i].z;
                acc[r].w += p * vMine[i].w;
            }
        }
    }

    #pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        if (GROUPS == 2) {
            const float4 its = make_float4(__shfl_xor_sync(FULL, acc[r].x, 16),
                                           __shfl_xor_sync(FULL, acc[r].y, 16),
                                           __shfl_xor_sync(FULL, acc[r].z, 16),
                                           __shfl_xor_sync(FULL, acc[r].w, 16));
            const float mIts = __shfl_xor_sync(FULL, m[r], 16);
            const float lIts = __shfl_xor_sync(FULL, l[r], 16);
            merge(m[r], l[r], acc[r], mIts, lIts, its);
        }
        if (lane < LANES) {
            float* to = parts[warp][r];
            to[column] = acc[r].x;
            to[column + 1] = acc[r].y;
            to[column + 2] = acc[r].z;
            to[column + 3] = acc[r].w;
            if (lane == 0) {
                to[D] = m[r];
                to[D + 1] = l[r];
            }
        }
    }
    __syncthreads();       // every warp's parts are there
    const bool whole = gridDim.y == 1;
    float* ml = o + (size_t)gridDim.x * rows * gridDim.y * d;
    for (int at = threadIdx.x; at < rows * LANES; at += THREADS) {
        const int row = at / LANES, e = at % LANES * 4;
        float mRow = __int_as_float(0xff800000), lRow = 0.0f;
        float4 sum = zero;
        #pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const float* its = parts[w][row];
            merge(mRow, lRow, sum, its[D], its[D + 1],
                  make_float4(its[e], its[e + 1], its[e + 2], its[e + 3]));
        }
        const bool none = lRow == 0.0f;                  // no key was seen
        const float norm = !whole ? 1.0f : none ? 0.0f : 1.0f / lRow;
        const size_t head = (size_t)blockIdx.x * group + row / queries;
        const size_t to = (head * gridDim.y + blockIdx.y) * queries + row % queries;
        if (e < d)
            *(float4*)(o + to * d + e) =
                make_float4(sum.x * norm, sum.y * norm, sum.z * norm, sum.w * norm);
        if (e == 0 && !whole)
            *(float2*)(ml + to * 2) = make_float2(mRow, lRow);
        if (e == 0 && whole && lse)
            lse[to] = none ? mRow : mRow * LN2 + logf(lRow);
    }
}
// Requested: K and V once = 8 d bytes a key; Q once a split, and 4 (d + 2) bytes a row and split.

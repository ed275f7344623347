"""What a chapter and the command line show of the numbers: tables, sentences, figures."""

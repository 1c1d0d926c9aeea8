"""Parts of tools/bench_attention.py. Those without torch in their signatures need neither torch nor a GPU."""

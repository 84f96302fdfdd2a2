"""Runs `vllm serve`, also of vLLM's package for CPUs, whose own command doesn't start."""

from vllm.entrypoints.cli.serve import ServeSubcommand, make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

# A core that is spawned, as on a GPU, also imports this module.
if __name__ == "__main__":
    ServeSubcommand.cmd(make_arg_parser(FlexibleArgumentParser()).parse_args())

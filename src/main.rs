//! The binary: parses the command line, runs it, turns the outcome into an exit code. Everything else is the library's.

use std::process::ExitCode;

fn main() -> ExitCode {
    prefix_router::cli::main()
}

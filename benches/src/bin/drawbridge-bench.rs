//! The one binary of the benchmarks.

fn main() -> anyhow::Result<()> {
    drawbridge_benches::cli::main()
}

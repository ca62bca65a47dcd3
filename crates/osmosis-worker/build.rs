//! Rebuilds this crate when a file of the embedded Python package appears or goes; the compiler
//! itself notices only changes of files it has seen.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../../python/osmosis_ai");
    println!("cargo::rerun-if-changed=../../pyproject.toml");
}

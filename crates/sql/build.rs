//! Builds anew when a migration is added: the compiler only knows of those that were there.

fn main() {
    println!("cargo:rerun-if-changed=../../migrations");
}

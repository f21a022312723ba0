//! The whole gateway as its clients see it: the real program, real backends, real connections.

#[cfg(test)]
mod testkit_itself;

//! The demo server as its clients see it: over a real loopback listener and over pipes.

#[cfg(test)]
mod client;
#[cfg(test)]
mod legacy;
#[cfg(test)]
mod modern;
#[cfg(test)]
mod sse;
#[cfg(test)]
mod stdio;

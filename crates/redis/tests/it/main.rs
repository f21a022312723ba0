//! The contracts of the seven ports, over every adapter: memory, one server, a cluster, and a master with Sentinel. And
//! what Redis does to them: restarts, faults, passwords, certificates.

#[cfg(test)]
mod contract;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod fleet;

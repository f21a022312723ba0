//! The whole gateway as its clients see it: the real program, real backends, real connections. Tests that check a
//! rule of the protocol digest begin with its number.

#[cfg(test)]
mod architecture;
#[cfg(test)]
mod auth;
#[cfg(test)]
mod backend;
#[cfg(test)]
mod backends;
#[cfg(test)]
mod bridge;
#[cfg(test)]
mod chaos;
#[cfg(test)]
mod client_certificates;
#[cfg(test)]
mod command_line;
#[cfg(test)]
mod docs;
#[cfg(test)]
mod fleet;
#[cfg(test)]
mod legacy;
#[cfg(test)]
mod lifecycle;
#[cfg(test)]
mod logging;
#[cfg(test)]
mod modern;
#[cfg(test)]
mod operating;
#[cfg(test)]
mod outbound;
#[cfg(test)]
mod sse_transport;
#[cfg(test)]
mod stdio;
#[cfg(test)]
mod testkit_itself;

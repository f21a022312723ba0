//! Finds the master that sentinels know.

use std::time::Duration;

use parking_lot::Mutex;
use redis::Value;

use crate::link::{Dialer, Link, LinkError};
use crate::url::Address;

/// The sentinels of one master.
pub(crate) struct Sentinels {
    /// The one that knew last is asked first.
    addresses: Mutex<Vec<Address>>,
    name: String,
}

impl Sentinels {
    pub(crate) fn new(addresses: Vec<Address>, name: String) -> Self {
        Self { addresses: Mutex::new(addresses), name }
    }

    /// Where the master is, as the first sentinel says that can be asked.
    pub(crate) async fn master(&self, dialer: &Dialer) -> Result<Address, LinkError> {
        let addresses = self.addresses.lock().clone();
        let mut reasons = Vec::new();
        for address in addresses {
            match self.ask(dialer, &address).await {
                Ok(master) => {
                    let mut order = self.addresses.lock();
                    order.sort_by_key(|other| *other != address);
                    return Ok(master);
                }
                Err(error) => reasons.push(error.to_string()),
            }
        }
        Err(LinkError::Discovery(format!("no sentinel knows the master: {}", reasons.join("; "))))
    }

    async fn ask(&self, dialer: &Dialer, address: &Address) -> Result<Address, LinkError> {
        let link = dialer.dial_sentinel(address).await?;
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name);
        let answer = dialer.within(address, link.send(&question)).await;
        link.close();
        let unknown = || LinkError::Discovery(format!("{address} knows no master of this name"));
        let (host, port) =
            redis::from_redis_value::<Option<(String, u16)>>(answer?).ok().flatten().ok_or_else(unknown)?;
        Ok(Address { host, port })
    }
}

/// Refuses a server that is a replica, as one may be for a moment after it was a master.
pub(crate) async fn check_master(link: &Link, address: Address, timeout: Duration) -> Result<(), LinkError> {
    let role = redis::cmd("ROLE");
    let answer = match tokio::time::timeout(timeout, link.send(&role)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => return Err(LinkError::Io(address, crate::link::describe(&error))),
        Err(_) => return Err(LinkError::TimedOut(address, timeout)),
    };
    let is_master = match answer {
        Value::Array(parts) => parts
            .into_iter()
            .next()
            .is_some_and(|role| redis::from_redis_value::<String>(role).is_ok_and(|role| role == "master")),
        _ => false,
    };
    if is_master {
        return Ok(());
    }
    link.close();
    Err(LinkError::NotMaster(address))
}

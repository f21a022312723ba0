//! Knows which node of a cluster has which slot.

use std::collections::BTreeSet;
use std::sync::Arc;

use rand::seq::SliceRandom as _;
use redis::Value;
use tokio::sync::{Notify, watch};

use super::{Hub, Target};
use crate::backoff::Backoff;
use crate::link::{Link, LinkError, Role};
use crate::url::Address;

/// How the knowledge of the cluster is called among what must be there.
pub(crate) const NAME: &str = "the map of the cluster";

/// Who has which slots: first, last, owner.
type Slots = Vec<(u16, u16, Address)>;

#[derive(Default)]
struct Known {
    slots: Option<Slots>,
    /// Why nothing is known, if it was tried.
    error: Option<Arc<str>>,
}

/// What is known of a cluster.
pub(crate) struct Cluster {
    seeds: Vec<Address>,
    known: watch::Sender<Known>,
    wanted: Notify,
}

impl Cluster {
    pub(crate) fn new(seeds: Vec<Address>) -> Self {
        Self { seeds, known: watch::channel(Known::default()).0, wanted: Notify::new() }
    }

    /// Has the map read anew.
    pub(crate) fn refresh(&self) {
        self.wanted.notify_one();
    }

    /// Who has a slot. Waits for the first map, unless that could not be had.
    pub(crate) async fn owner(&self, slot: u16) -> Result<Address, Arc<str>> {
        let mut known = self.known.subscribe();
        let settled = known.wait_for(|known| known.slots.is_some() || known.error.is_some());
        let known = settled.await.map_err(|_| Arc::from("closed"))?;
        match (&known.slots, &known.error) {
            (Some(slots), _) => find(slots, slot).cloned().ok_or_else(|| {
                self.refresh();
                Arc::from(format!("no node of the cluster has slot {slot}"))
            }),
            (None, Some(error)) => Err(error.clone()),
            (None, None) => Err(Arc::from("closed")),
        }
    }

    /// Whether a slot is known to be elsewhere than at `target` by now. If not, the map is read anew.
    pub(crate) fn moved_from(&self, slot: u16, target: &Target) -> bool {
        let moved = {
            let known = self.known.borrow();
            let owner = known.slots.as_ref().and_then(|slots| find(slots, slot));
            owner.is_some_and(|owner| *target != Target::At(owner.clone()))
        };
        if !moved {
            self.refresh();
        }
        moved
    }

    /// A node said who has a slot.
    pub(crate) fn moved(&self, slot: u16, owner: Address) {
        self.known.send_modify(|known| {
            let slots = known.slots.get_or_insert_default();
            slots.retain(|(first, last, _)| (*first, *last) != (slot, slot));
            // The first entry that fits counts.
            slots.insert(0, (slot, slot, owner));
        });
        self.refresh();
    }
}

fn find(slots: &Slots, slot: u16) -> Option<&Address> {
    slots.iter().find(|(first, last, _)| (*first..=*last).contains(&slot)).map(|(.., owner)| owner)
}

/// The address in a redirection; one without a host is at the host of whoever said it.
pub(crate) fn address(text: &str, said_by: &Target) -> Option<Address> {
    let (host, port) = text.rsplit_once(':')?;
    let port = port.parse().ok()?;
    match (host.trim_start_matches('[').trim_end_matches(']'), said_by) {
        ("" | "?", Target::At(address)) => Some(Address { host: address.host.clone(), port }),
        ("" | "?", Target::Master) => None,
        (host, _) => Some(Address { host: host.to_owned(), port }),
    }
}

/// Reads the map whenever that is wanted, until it could be had.
pub(crate) async fn follow(hub: Arc<Hub>) {
    let Some(cluster) = hub.cluster() else { return };
    let mut backoff = Backoff::default();
    loop {
        match read(&hub, cluster).await {
            Ok(slots) => {
                hub.health.up(NAME);
                keep_nodes(&hub, &slots);
                cluster.known.send_replace(Known { slots: Some(slots), error: None });
                cluster.wanted.notified().await;
                // What is wanted by many at once is read once, and a cluster that changes is not asked all the time.
                backoff.reset();
                backoff.wait().await;
            }
            Err(error) => {
                let reason = error.to_string();
                hub.health.down(NAME, &reason);
                cluster.known.send_modify(|known| known.error = Some(Arc::from(reason)));
                backoff.wait().await;
            }
        }
    }
}

/// Begins to connect to the owners, and ends the connections to those that own nothing any more.
fn keep_nodes(hub: &Arc<Hub>, slots: &Slots) {
    let owners: BTreeSet<&Address> = slots.iter().map(|(.., owner)| owner).collect();
    hub.nodes.lock().retain(|target, node| {
        let stays = matches!(target, Target::At(address) if owners.contains(address));
        if !stays {
            node.stop();
            hub.health.forget(&target.name());
        }
        stays
    });
    for owner in owners {
        drop(hub.node(Target::At(owner.clone())));
    }
}

/// Asks a connected node, else one of those that are known, until one answers.
async fn read(hub: &Arc<Hub>, cluster: &Cluster) -> Result<Slots, LinkError> {
    let mut connected: Vec<(Target, Link)> = {
        let nodes = hub.nodes.lock();
        nodes.iter().filter_map(|(target, node)| Some((target.clone(), node.standing()?))).collect()
    };
    // One that is cut off from the others has an old map: it must not always be the first.
    connected.shuffle(&mut rand::rng());
    let mut reasons = Vec::new();
    for (target, link) in connected {
        let Target::At(address) = target else { continue };
        match ask(hub, &link, &address).await {
            Ok(slots) => return Ok(slots),
            Err(error) => reasons.push(error.to_string()),
        }
    }
    let known: Vec<Address> = {
        let known = cluster.known.borrow();
        known.slots.iter().flatten().map(|(.., owner)| owner.clone()).collect()
    };
    let mut tried = BTreeSet::new();
    for address in cluster.seeds.iter().cloned().chain(known) {
        if !tried.insert(address.clone()) {
            continue;
        }
        let answer = match hub.dialer.dial(&address, Role::Discovery, None).await {
            Ok(link) => {
                let answer = ask(hub, &link, &address).await;
                link.close();
                answer
            }
            Err(error) => Err(error),
        };
        match answer {
            Ok(slots) => return Ok(slots),
            Err(error) => reasons.push(error.to_string()),
        }
    }
    Err(LinkError::Discovery(format!("no node of the cluster answers: {}", reasons.join("; "))))
}

async fn ask(hub: &Hub, link: &Link, address: &Address) -> Result<Slots, LinkError> {
    let mut question = redis::cmd("CLUSTER");
    question.arg("SLOTS");
    let answer = hub.dialer.within(address, link.send(&question)).await?;
    let slots = parse(answer, address);
    let none = || LinkError::Discovery(format!("{address} knows of no slots"));
    slots.filter(|slots| !slots.is_empty()).ok_or_else(none)
}

/// `[[first, last, [host, port, id, ...], replicas...], ...]`
fn parse(answer: Value, said_by: &Address) -> Option<Slots> {
    let Value::Array(ranges) = answer else { return None };
    let range = |range: Value| {
        let Value::Array(parts) = range else { return None };
        let mut parts = parts.into_iter();
        let first = redis::from_redis_value(parts.next()?).ok()?;
        let last = redis::from_redis_value(parts.next()?).ok()?;
        let Value::Array(owner) = parts.next()? else { return None };
        let mut owner = owner.into_iter();
        let host: Option<String> = redis::from_redis_value(owner.next()?).ok()?;
        let port = redis::from_redis_value(owner.next()?).ok()?;
        let host = host.filter(|host| !host.is_empty() && host != "?");
        let host = host.unwrap_or_else(|| said_by.host.clone());
        Some((first, last, Address { host, port }))
    };
    ranges.into_iter().map(range).collect()
}

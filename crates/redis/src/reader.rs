//! The connection that blocks: it waits for what comes into the streams that this instance reads.

mod inbox;

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{FromRedisValue, Pipeline, RedisError, RedisResult, Value};

pub(crate) use self::inbox::Inbox;
use crate::backoff::Backoff;
use crate::hub::Hub;
use crate::link::{Link, LinkError, Role, describe};
use crate::request::{Request, is_misfit};
use crate::revocations::Follower;

/// How long one read blocks. What was revoked a second ago has to be known, and that it is.
const BLOCK: Duration = Duration::from_millis(400);
/// How often the streams are looked after.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long it blocks while a stream is left out, since nobody takes what comes from it.
const BLOCK_BRIEFLY: Duration = Duration::from_millis(50);
/// How long it blocks while there is something else to do.
const BLOCK_HARDLY: Duration = Duration::from_millis(1);
/// Entries of one read.
pub(crate) const COUNT: usize = 256;

/// A stream that is read.
pub(crate) enum Feed {
    /// Messages to this instance.
    Inbox(Inbox),
    /// What was revoked.
    Revocations(Follower),
}

/// An entry: its id and its fields.
pub(crate) type Entry = (String, Vec<(Vec<u8>, Vec<u8>)>);

/// Why reading ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Stopped {
    #[error("{0}")]
    Link(#[from] LinkError),
    #[error("{}", describe(.0))]
    Redis(#[from] RedisError),
    #[error("{0}")]
    Answer(String),
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    #[error("{0}")]
    Nowhere(Arc<str>),
}

/// A connection with a deadline for each answer.
pub(crate) struct Conversation<'a> {
    link: &'a Link,
    timeout: Duration,
}

impl Conversation<'_> {
    pub(crate) async fn ask(&self, request: &Request) -> Result<Value, Stopped> {
        self.within(request.run(self.link, false)).await
    }

    /// Runs one script many times, of which the answers don't matter.
    pub(crate) async fn tell_all(&self, requests: &[Request]) -> Result<(), Stopped> {
        let Some((first, rest)) = requests.split_first() else { return Ok(()) };
        // The first one makes it known.
        self.ask(first).await?;
        if rest.is_empty() {
            return Ok(());
        }
        let mut all = Pipeline::with_capacity(rest.len());
        rest.iter().for_each(|request| {
            all.add_command(request.packed(false));
        });
        for answer in self.within(self.link.send_all(&all)).await? {
            answer.extract_error()?;
        }
        Ok(())
    }

    async fn within<T>(&self, work: impl Future<Output = RedisResult<T>>) -> Result<T, Stopped> {
        match tokio::time::timeout(self.timeout, work).await {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(Stopped::TimedOut(self.timeout)),
        }
    }
}

impl Feed {
    fn key(&self) -> &str {
        match self {
            Self::Inbox(inbox) => inbox.key(),
            Self::Revocations(follower) => follower.key(),
        }
    }

    /// After which entry to read; `None` while nothing can be taken.
    fn after(&self) -> Option<&str> {
        match self {
            Self::Inbox(inbox) => inbox.has_room().then_some("0"),
            Self::Revocations(follower) => Some(follower.last()),
        }
    }

    /// Once on each new connection.
    async fn begin(&mut self, conversation: &Conversation<'_>) -> Result<(), Stopped> {
        match self {
            Self::Inbox(inbox) => inbox.begin(conversation).await,
            Self::Revocations(follower) => follower.begin(conversation).await,
        }
    }

    async fn take(&mut self, conversation: &Conversation<'_>, entries: Vec<Entry>) -> Result<(), Stopped> {
        match self {
            Self::Inbox(inbox) => inbox.take(conversation, entries).await,
            Self::Revocations(follower) => {
                follower.take(entries);
                Ok(())
            }
        }
    }

    /// Now and then.
    async fn look_after(&mut self, conversation: &Conversation<'_>) -> Result<(), Stopped> {
        match self {
            Self::Inbox(_) => Ok(()),
            Self::Revocations(follower) => follower.look_after(conversation).await,
        }
    }

    /// Whether it should be looked after at once.
    fn has_work(&self) -> bool {
        match self {
            Self::Inbox(_) => false,
            Self::Revocations(follower) => follower.has_work(),
        }
    }

    /// All that was there at this time was read.
    fn heard(&self, at: Instant) {
        if let Self::Revocations(follower) = self {
            follower.heard(at);
        }
    }

    /// Now and then, also without a connection.
    fn sweep(&mut self) {
        if let Self::Revocations(follower) = self {
            follower.sweep();
        }
    }
}

/// Reads streams that are on one node until the hub is closed.
pub(crate) async fn follow(hub: Arc<Hub>, name: &'static str, mut feeds: Vec<Feed>) {
    let mut backoff = Backoff::default();
    let mut was_up = false;
    loop {
        let begun = Instant::now();
        let Err(stopped) = follow_once(&hub, name, &mut feeds, &mut was_up).await;
        hub.health.down(name, &stopped.to_string());
        if matches!(&stopped, Stopped::Redis(error) if is_misfit(error)) {
            delete_misfits(&hub, &feeds).await;
        }
        feeds.iter_mut().for_each(Feed::sweep);
        backoff.after(begun).await;
    }
}

/// Makes way for streams where somebody else has written something.
async fn delete_misfits(hub: &Arc<Hub>, feeds: &[Feed]) {
    for feed in feeds {
        let deleted = hub.call("bus", Request::delete_misfits(&[feed.key()])).await;
        tracing::warn!(?deleted, key = feed.key(), "keys in Redis that are none of ours were in the way");
    }
}

async fn follow_once(
    hub: &Arc<Hub>,
    name: &str,
    feeds: &mut [Feed],
    was_up: &mut bool,
) -> Result<std::convert::Infallible, Stopped> {
    let slot = feeds.first().map_or(0, |feed| crate::keys::slot(feed.key().as_bytes()));
    let target = hub.target(slot).await.map_err(Stopped::Nowhere)?;
    let link = hub.dial(&target, Role::Reader, None).await.inspect_err(|_| hub.suspect(&target))?;
    // Whatever ends this ends the connection.
    let _closed = Closed(&link);
    let conversation = Conversation { link: &link, timeout: hub.timeout };
    for feed in feeds.iter_mut() {
        feed.begin(&conversation).await.inspect_err(|_| hub.suspect(&target))?;
    }
    hub.connected(name, std::mem::replace(was_up, true));
    let mut looked = Instant::now();
    loop {
        let has_work = feeds.iter().any(Feed::has_work);
        if has_work || looked.elapsed() >= LOOK_EVERY {
            looked = Instant::now();
            for feed in feeds.iter_mut() {
                feed.look_after(&conversation).await?;
                feed.sweep();
            }
        }
        let open: Vec<(&str, &str)> =
            feeds.iter().filter_map(|feed| Some((feed.key(), feed.after()?))).collect();
        if open.is_empty() {
            wait_for_room(feeds).await;
            continue;
        }
        let block = match open.len() == feeds.len() {
            _ if has_work => BLOCK_HARDLY,
            true => BLOCK,
            false => BLOCK_BRIEFLY,
        };
        let asked = Instant::now();
        let answer = match tokio::time::timeout(block + hub.timeout, link.send(&command(&open, block))).await
        {
            Ok(answer) => answer?,
            Err(_) => return Err(Stopped::TimedOut(block + hub.timeout)),
        };
        let streams: Option<Vec<(String, Vec<Entry>)>> = read(answer)?;
        let mut is_all = true;
        for (key, entries) in streams.into_iter().flatten() {
            is_all &= entries.len() < COUNT;
            if let Some(feed) = feeds.iter_mut().find(|feed| feed.key() == key) {
                feed.take(&conversation, entries).await?;
            }
        }
        if is_all {
            feeds.iter().for_each(|feed| feed.heard(asked));
        }
    }
}

/// An answer as the type it has.
pub(crate) fn read<T: FromRedisValue>(answer: Value) -> Result<T, Stopped> {
    redis::from_redis_value(answer).map_err(|error| Stopped::Answer(error.to_string()))
}

fn command(open: &[(&str, &str)], block: Duration) -> redis::Cmd {
    let mut command = redis::cmd("XREAD");
    command.arg("COUNT").arg(COUNT).arg("BLOCK").arg(crate::request::millis(block)).arg("STREAMS");
    open.iter().for_each(|(key, _)| {
        command.arg(*key);
    });
    open.iter().for_each(|(_, after)| {
        command.arg(*after);
    });
    command
}

/// Nothing can be read: wait until something can, but go on looking after the connection.
async fn wait_for_room(feeds: &[Feed]) {
    let room = feeds.iter().find_map(|feed| match feed {
        Feed::Inbox(inbox) => Some(inbox.room()),
        Feed::Revocations(_) => None,
    });
    let Some(room) = room else { return };
    let _ = tokio::time::timeout(BLOCK, room.notified()).await;
}

/// Closes a connection when it is dropped.
struct Closed<'a>(&'a Link);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

//! What is asked of Redis: a command or a script, the slot that it belongs to, and whether it may be asked twice.

use std::sync::LazyLock;
use std::time::Duration;

use redis::{Cmd, ErrorKind, FromRedisValue, Pipeline, RedisResult, ServerErrorKind, ToRedisArgs, Value};

use drawbridge_core::state::Unavailable;

use crate::keys::{kind, slot};
use crate::link::Link;
use crate::scripts;

/// A Lua script. It is sent as a hash, and as text to a server that does not know it yet.
pub(crate) struct Lua {
    source: &'static str,
    hash: LazyLock<String, Box<dyn FnOnce() -> String + Send + Sync>>,
}

impl Lua {
    pub(crate) fn new(source: &'static str) -> Self {
        let hash = move || redis::Script::new(source).get_hash().to_owned();
        Self { source, hash: LazyLock::new(Box::new(hash)) }
    }
}

enum Body {
    Command(Cmd),
    /// Its arguments begin with so many keys.
    Script {
        lua: &'static Lua,
        keys: usize,
        arguments: Vec<Vec<u8>>,
    },
}

/// A command or a script with its arguments.
pub(crate) struct Request {
    slot: u16,
    body: Body,
    again: bool,
}

impl Request {
    /// A command about one key: `name key`, and what is added by [`Request::arg`].
    pub(crate) fn command(name: &str, key: &str) -> Self {
        let mut command = redis::cmd(name);
        command.arg(key);
        Self { slot: slot(key.as_bytes()), body: Body::Command(command), again: false }
    }

    /// A command about no key.
    pub(crate) fn plain(name: &str) -> Self {
        Self { slot: 0, body: Body::Command(redis::cmd(name)), again: false }
    }

    /// A script about keys that have one slot.
    pub(crate) fn script(lua: &'static Lua, keys: &[&str]) -> Self {
        let arguments = keys.iter().map(|key| key.as_bytes().to_vec()).collect();
        let slot = keys.first().map_or(0, |key| slot(key.as_bytes()));
        Self { slot, body: Body::Script { lua, keys: keys.len(), arguments }, again: false }
    }

    /// Adds an argument.
    #[must_use]
    pub(crate) fn arg(mut self, argument: impl ToRedisArgs) -> Self {
        match &mut self.body {
            Body::Command(command) => {
                command.arg(argument);
            }
            Body::Script { arguments, .. } => arguments.extend(argument.to_redis_args()),
        }
        self
    }

    /// Says that it may be asked again if its answer was lost: a second time changes nothing more, and gives the same
    /// answer.
    #[must_use]
    pub(crate) fn again(mut self) -> Self {
        self.again = true;
        self
    }

    pub(crate) fn slot(&self) -> u16 {
        self.slot
    }

    pub(crate) fn is_repeatable(&self) -> bool {
        self.again
    }

    /// What deletes the keys of this request that are of another type than they should be.
    pub(crate) fn without_misfits(&self) -> Self {
        let keys: Vec<String> = match &self.body {
            Body::Command(command) => command.args_iter().skip(1).take(1).filter_map(text).collect(),
            Body::Script { keys, arguments, .. } => {
                let keys = arguments.iter().take(*keys);
                keys.map(|key| String::from_utf8_lossy(key).into_owned()).collect()
            }
        };
        Self::delete_misfits(&keys.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// What deletes keys that are of another type than they should be.
    pub(crate) fn delete_misfits(keys: &[&str]) -> Self {
        let request = Self::script(&scripts::DELETE_MISFITS, keys);
        keys.iter().fold(request, |request, key| request.arg(kind(key))).again()
    }

    /// As it is sent: with the script's hash, or with its text.
    pub(crate) fn packed(&self, with_text: bool) -> Cmd {
        match &self.body {
            Body::Command(command) => command.clone(),
            Body::Script { lua, keys, arguments } => {
                let mut command = match with_text {
                    true => redis::cmd("EVAL"),
                    false => redis::cmd("EVALSHA"),
                };
                command.arg(if with_text { lua.source } else { lua.hash.as_str() }).arg(*keys);
                arguments.iter().for_each(|argument| {
                    command.arg(argument.as_slice());
                });
                command
            }
        }
    }

    /// Asks over one connection. `asking` says to a node of a cluster that it is asked although the key is not its own
    /// yet.
    pub(crate) async fn run(&self, link: &Link, asking: bool) -> RedisResult<Value> {
        let answer = send(link, &self.packed(false), asking).await;
        let is_unknown = |error: &redis::RedisError| error.kind() == NO_SCRIPT;
        match answer {
            Err(error) if is_unknown(&error) => send(link, &self.packed(true), asking).await,
            other => other,
        }
    }
}

fn text(argument: redis::Arg<&[u8]>) -> Option<String> {
    match argument {
        redis::Arg::Simple(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        _ => None,
    }
}

/// Whether a key has a type that none of ours has: somebody else wrote it.
pub(crate) fn is_misfit(error: &redis::RedisError) -> bool {
    // In a script of Redis 6 it is only part of the message.
    error.code() == Some("WRONGTYPE") || error.detail().is_some_and(|detail| detail.contains("WRONGTYPE"))
}

const NO_SCRIPT: ErrorKind = ErrorKind::Server(ServerErrorKind::NoScript);

async fn send(link: &Link, command: &Cmd, asking: bool) -> RedisResult<Value> {
    if !asking {
        return link.send(command).await;
    }
    let mut both = Pipeline::with_capacity(2);
    both.cmd("ASKING").add_command(command.clone());
    let answers = link.send_all(&both).await?;
    answers.into_iter().next_back().unwrap_or(Value::Nil).extract_error()
}

/// An answer as the type it has.
pub(crate) fn read<T: FromRedisValue>(answer: Value) -> Result<T, Unavailable> {
    redis::from_redis_value(answer)
        .map_err(|error| Unavailable(format!("an answer of Redis is none: {error}")))
}

/// The longest time that is asked for: a year. What is meant for longer can be lost anyway.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// A time as Redis counts it: in whole milliseconds, at least one.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.min(LONGEST).as_micros().div_ceil(1000)).unwrap_or(u64::MAX).max(1)
}

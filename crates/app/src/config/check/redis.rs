//! Checks of shared state in Redis.

use drawbridge_redis::{RedisOptions, ServerUrl};

use crate::config::check::{Checker, outbound};
use crate::config::model::{Password, Redis};
use crate::config::raw;
use crate::config::value::SecretSource;

/// Checks shared state in Redis, and that all instances that share it can have the same seal keys.
pub(super) fn redis(checker: &mut Checker<'_>, raw: Option<raw::Redis>, seal: &raw::Seal) -> Option<Redis> {
    let raw = raw?;
    if seal.keys.as_ref().is_none_or(Vec::is_empty) && !checker.is_incomplete("seal") {
        let message = "instances that share state need the same seal keys, and `seal.keys` has none";
        let hint = "make one with `openssl rand -base64 32`, and give it to all instances as \
                    `seal: { keys: [{ id: k1, key: { env: DRAWBRIDGE_SEAL_K1 } }] }`";
        checker.problem(PATH, message, hint);
    }
    let prefix = raw.prefix.unwrap_or_else(|| RedisOptions::PREFIX.to_owned());
    if !RedisOptions::is_prefix(&prefix) {
        let hint = "use 1 to 64 letters, digits, `.`, `_`, `-` or `:`";
        checker.problem("redis.prefix", "not a usable prefix", hint);
    }
    let user = raw.user.filter(|user| !user.is_empty());
    let password = raw.password.and_then(|source| password(checker, source));
    let ca_bundle = outbound::bundles(checker, "redis.ca_bundle", raw.ca_bundle);
    let timeout = checker.positive("redis.timeout", raw.timeout, RedisOptions::TIMEOUT);
    let Some(source) = raw.url else {
        if !checker.is_incomplete("redis") {
            checker.problem("redis", "the URL is missing", "add `url: redis://HOST:6379`");
        }
        return None;
    };
    let url = url(checker, source)?;
    if user.is_some() && password.is_none() && url.password.is_none() {
        checker.problem("redis.user", "a user without a password", "add `password: { file: PATH }`");
    }
    Some(Redis { url, user, password, ca_bundle, prefix, timeout })
}

const PATH: &str = "redis.url";

fn url(checker: &mut Checker<'_>, source: SecretSource) -> Option<ServerUrl> {
    let written = checker.secret(PATH, source)?;
    match written.expose().parse() {
        Ok(url) => Some(url),
        Err(error) => {
            let hint = "write it as `redis://HOST:6379`, `redis+sentinel://HOST:26379/MASTER` or \
                        `redis+cluster://HOST:6379,HOST:6379`; `rediss` in place of `redis` is TLS";
            checker.problem(PATH, error.to_string(), hint);
            None
        }
    }
}

/// A file is read again for each connection; here it is only tried.
fn password(checker: &mut Checker<'_>, source: SecretSource) -> Option<Password> {
    let file = match &source {
        SecretSource::File(file) => Some(file.clone()),
        SecretSource::Literal(_) | SecretSource::Env(_) => None,
    };
    let secret = checker.secret("redis.password", source)?;
    Some(file.map_or(Password::Fixed(secret), Password::File))
}

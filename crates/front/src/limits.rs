//! How often requests and calls may come: of a caller, with a token, at an endpoint, of a tool.
//!
//! All limits of a request are one question to the [limiter](drawbridge_core::state::Limiter). It is asked before the body
//! is read if the headers tell all that it takes; else after. What was refused a moment ago is refused without a question,
//! and before the body in any case: nothing that was refused comes back before its time.

use std::borrow::Cow;
use std::collections::HashMap;
use std::time::Duration;

use drawbridge_core::Fault;
use drawbridge_core::glob::Glob;
use drawbridge_core::metrics::{LimitKind, Limits as Counted};
use drawbridge_core::state::{Quota, Take, Taken, Verdict, WithFallback};
use drawbridge_wire::message::{Field, Incoming};
use drawbridge_wire::{Kind, Message, header, method};
use http::HeaderMap;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::gate::Caller;
use crate::reply;

/// How often a caller is told that it lacks a scope.
const CHALLENGE_EVERY: Duration = Duration::from_secs(60);
/// So many keys that were refused are remembered.
const MAX_REFUSED: usize = 10_000;

/// How often things may happen, as the configuration says.
#[derive(Debug, Clone, Default)]
pub struct Limits {
    /// Requests of a caller.
    pub caller: Option<Quota>,
    /// Requests with a token, at all endpoints together.
    pub token: Option<Quota>,
    /// Requests at an endpoint, by the name that people know it by.
    pub endpoints: HashMap<String, Quota>,
    /// Calls of tools.
    pub tools: Vec<ToolLimit>,
}

/// How often tools may be called whose names fit a pattern: all of them together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolLimit {
    /// Which tools, as clients know them.
    pub name: Glob,
    /// At which endpoint, by the name that people know it by; at all of them together if there is none.
    pub endpoint: Option<String>,
    /// Whether each caller has a quota of their own.
    pub is_per_caller: bool,
    /// How often.
    pub quota: Quota,
}

/// Who counts, and what was refused.
#[derive(Debug)]
pub(crate) struct Limiting {
    limiter: WithFallback,
    /// Until when.
    refused: Mutex<HashMap<String, Instant>>,
}

/// A request or a call that may not happen yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooOften {
    /// Which limit says so.
    pub(crate) kind: LimitKind,
    /// After this long it may.
    pub(crate) retry_after: Duration,
}

impl TooOften {
    /// As an error of the call.
    pub(crate) fn fault(self) -> Fault {
        Fault::RateLimited { kind: self.kind, retry_after: self.retry_after }
    }
}

/// What has to be asked for one request.
pub(crate) struct Plan<'a> {
    caller: &'a Caller,
    /// What each request takes.
    all: Vec<(LimitKind, Take)>,
    /// The rules for tools here.
    tools: Vec<&'a ToolLimit>,
    /// What each request takes is taken.
    is_taken: bool,
    /// The tool whose call is taken too.
    taken_tool: Option<String>,
}

impl<'a> Plan<'a> {
    /// For a request of `caller` to `endpoint`.
    pub(crate) fn of(limits: &'a Limits, caller: &'a Caller, endpoint: &'a str) -> Self {
        let mut all = Vec::new();
        let mut add = |kind: LimitKind, key: Option<String>, quota: Option<&Quota>| {
            if let (Some(key), Some(quota)) = (key, quota) {
                all.push((kind, Take { key, quota: *quota }));
            }
        };
        let who = caller.is_known().then(|| format!("caller:{}", caller.principal.as_str()));
        add(LimitKind::Caller, who, limits.caller.as_ref());
        add(LimitKind::Token, caller.token_key(), limits.token.as_ref());
        let here = limits.endpoints.get(endpoint);
        add(LimitKind::Endpoint, here.map(|_| format!("endpoint:{endpoint}")), here);
        let is_here = |tool: &&ToolLimit| tool.endpoint.as_deref().is_none_or(|name| name == endpoint);
        let tools = limits.tools.iter().filter(is_here).collect();
        Self { caller, all, tools, is_taken: false, taken_tool: None }
    }

    /// What a call of this tool takes.
    fn of_tool(&self, name: &str) -> Vec<Take> {
        let fitting = self.tools.iter().filter(|tool| tool.name.matches(name));
        let take = |tool: &&ToolLimit| {
            let at = tool.endpoint.as_deref().unwrap_or("*");
            let of = if tool.is_per_caller { self.caller.principal.as_str() } else { "*" };
            Take { key: format!("tool:{at}:{of}:{}", tool.name.as_str()), quota: tool.quota }
        };
        fitting.map(take).collect()
    }

    fn group(&self) -> Vec<Take> {
        self.all.iter().map(|(_, take)| take.clone()).collect()
    }
}

/// The tool that the headers of a request name, if they tell what is called; `Some(None)` says that it is no tool.
fn named_in(headers: &HeaderMap) -> Option<Option<Cow<'_, str>>> {
    if reply::text(headers, header::METHOD)? != method::TOOLS_CALL {
        return Some(None);
    }
    let name = reply::text(headers, header::NAME)?;
    Some(Some(header::decode(name).ok()?))
}

fn tool_of(message: &Message) -> Option<Cow<'_, str>> {
    if message.kind() != Kind::Request || message.method() != method::TOOLS_CALL {
        return None;
    }
    message.text(Field::Name)
}

impl Limiting {
    pub(crate) fn new(limiter: WithFallback) -> Self {
        Self { limiter, refused: Mutex::default() }
    }

    /// Before the body of a request is read. `may_call` says whether there can be a call in it.
    pub(crate) async fn before(
        &self,
        plan: &mut Plan<'_>,
        headers: &HeaderMap,
        may_call: bool,
        counted: &Counted,
    ) -> Result<(), TooOften> {
        let depends = may_call && !plan.tools.is_empty();
        let named = if depends { named_in(headers) } else { Some(None) };
        let tool = named.as_ref().and_then(|named| named.as_deref());
        let takes = tool.map(|name| plan.of_tool(name)).unwrap_or_default();
        let known = plan.all.iter().map(|(kind, take)| (*kind, take));
        let known = known.chain(takes.iter().map(|take| (LimitKind::Tool, take)));
        self.check_refused(known, counted)?;
        if named.is_none() {
            return Ok(());
        }
        plan.is_taken = true;
        plan.taken_tool = tool.map(str::to_owned);
        if plan.all.is_empty() && takes.is_empty() {
            return Ok(());
        }
        let groups = [plan.group(), takes];
        let taken = self.ask(&groups, counted).await;
        self.judge_all(plan, taken.first(), counted)?;
        match taken.get(1) {
            Some(refused) => self.judge(&groups[1], *refused, LimitKind::Tool, counted),
            None => Ok(()),
        }
    }

    /// Once the body is read: whether its calls may happen, by their place in it.
    pub(crate) async fn after(
        &self,
        plan: &mut Plan<'_>,
        incoming: &Incoming,
        counted: &Counted,
    ) -> Result<Vec<(usize, TooOften)>, TooOften> {
        let messages: Vec<(usize, &Message)> = match incoming {
            Incoming::One(message) => vec![(0, message)],
            Incoming::Batch(messages) => messages
                .iter()
                .enumerate()
                .filter_map(|(n, message)| Some((n, message.as_ref().ok()?)))
                .collect(),
        };
        let mut places = Vec::new();
        let mut groups = vec![if plan.is_taken { Vec::new() } else { plan.group() }];
        let mut taken_tool = plan.taken_tool.take();
        for (place, message) in messages {
            if plan.tools.is_empty() {
                break;
            }
            let Some(tool) = tool_of(message) else { continue };
            if taken_tool.take_if(|taken| *taken == tool).is_some() {
                continue;
            }
            let takes = plan.of_tool(&tool);
            if !takes.is_empty() {
                places.push(place);
                groups.push(takes);
            }
        }
        let is_taken = std::mem::replace(&mut plan.is_taken, true);
        if groups.iter().all(Vec::is_empty) {
            return Ok(Vec::new());
        }
        let taken = self.ask(&groups, counted).await;
        if !is_taken {
            self.judge_all(plan, taken.first(), counted)?;
        }
        let judged = places.into_iter().zip(groups.iter().zip(taken).skip(1));
        Ok(judged
            .filter_map(|(place, (takes, taken))| {
                let too_often = self.judge(takes, taken, LimitKind::Tool, counted).err()?;
                Some((place, too_often))
            })
            .collect())
    }

    /// Whether a caller may be told again that it lacks a scope.
    pub(crate) async fn may_challenge(&self, key: &str) -> bool {
        let quota = Quota { interval: CHALLENGE_EVERY, burst: 1 };
        matches!(self.limiter.take(key, quota).await, Verdict::Allowed { .. })
    }

    async fn ask(&self, groups: &[Vec<Take>], counted: &Counted) -> Vec<Taken> {
        let (taken, is_local) = self.limiter.take_groups(groups).await;
        if is_local {
            counted.degraded.inc();
        }
        taken
    }

    fn judge_all(&self, plan: &Plan<'_>, taken: Option<&Taken>, counted: &Counted) -> Result<(), TooOften> {
        let Some(Taken::Refused { place, .. }) = taken else { return Ok(()) };
        let kind = plan.all.get(*place).map_or(LimitKind::Caller, |(kind, _)| *kind);
        self.judge(&plan.group(), taken.copied().unwrap_or(Taken::Allowed), kind, counted)
    }

    fn judge(
        &self,
        takes: &[Take],
        taken: Taken,
        kind: LimitKind,
        counted: &Counted,
    ) -> Result<(), TooOften> {
        let Taken::Refused { place, retry_after } = taken else { return Ok(()) };
        if let Some(take) = takes.get(place) {
            self.remember(&take.key, retry_after);
        }
        counted.refused(kind).inc();
        Err(TooOften { kind, retry_after })
    }

    fn remember(&self, key: &str, wait: Duration) {
        let now = Instant::now();
        let mut refused = self.refused.lock();
        if refused.len() >= MAX_REFUSED {
            refused.retain(|_, until| *until > now);
        }
        if refused.len() < MAX_REFUSED {
            refused.insert(key.to_owned(), now + wait);
        }
    }

    fn check_refused<'t>(
        &self,
        takes: impl Iterator<Item = (LimitKind, &'t Take)>,
        counted: &Counted,
    ) -> Result<(), TooOften> {
        let mut refused = self.refused.lock();
        if refused.is_empty() {
            return Ok(());
        }
        let now = Instant::now();
        for (kind, take) in takes {
            match refused.get(&take.key) {
                Some(until) if *until > now => {
                    let retry_after = *until - now;
                    counted.refused(kind).inc();
                    return Err(TooOften { kind, retry_after });
                }
                Some(_) => {
                    refused.remove(&take.key);
                }
                None => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use async_trait::async_trait;
    use bytes::Bytes;
    use drawbridge_core::state::{Limiter, MemoryLimiter, Unavailable, Verdict};

    use super::*;

    /// Counts how often it is asked.
    #[derive(Default)]
    struct Asked(MemoryLimiter, AtomicUsize);

    #[async_trait]
    impl Limiter for Asked {
        async fn take(&self, key: &str, quota: Quota) -> Result<Verdict, Unavailable> {
            self.0.take(key, quota).await
        }

        async fn take_groups(&self, groups: &[Vec<Take>]) -> Result<Vec<Taken>, Unavailable> {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.take_groups(groups).await
        }
    }

    fn quota(burst: u32) -> Quota {
        Quota { interval: Duration::from_secs(3600), burst }
    }

    fn limits() -> Limits {
        let tool = |name: &str, burst| ToolLimit {
            name: Glob::parse(name).unwrap(),
            endpoint: None,
            is_per_caller: false,
            quota: quota(burst),
        };
        Limits {
            endpoints: HashMap::from([("/mcp".to_owned(), quota(3))]),
            tools: vec![tool("danger*", 2), tool("*", 100)],
            ..Limits::default()
        }
    }

    fn call(tool: &str) -> Incoming {
        let text =
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{tool}"}}}}"#);
        Incoming::parse(Bytes::from(text), 1).unwrap()
    }

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(name, value)| {
            (http::HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap())
        });
        pairs.collect()
    }

    #[tokio::test]
    async fn a_request_is_one_question_and_none_if_it_was_refused_a_moment_ago() {
        let asked = Arc::<Asked>::default();
        let limiting = Limiting::new(WithFallback::new(asked.clone()));
        let (limits, caller, counted) = (limits(), Caller::anonymous(), Counted::default());
        let asks = || asked.1.load(Ordering::Relaxed);
        // The body has to be read.
        let mut plan = Plan::of(&limits, &caller, "/mcp");
        limiting.before(&mut plan, &headers(&[]), true, &counted).await.unwrap();
        assert_eq!(asks(), 0);
        assert_eq!(limiting.after(&mut plan, &call("danger"), &counted).await.unwrap(), []);
        assert_eq!(asks(), 1);
        // The headers tell all of it.
        let named = headers(&[("mcp-method", "tools/call"), ("mcp-name", "danger")]);
        let mut plan = Plan::of(&limits, &caller, "/mcp");
        limiting.before(&mut plan, &named, true, &counted).await.unwrap();
        assert_eq!(limiting.after(&mut plan, &call("danger"), &counted).await.unwrap(), []);
        assert_eq!(asks(), 2);
        // They tell something else than is so: that is asked for as well.
        let mut plan = Plan::of(&limits, &caller, "/mcp");
        limiting.before(&mut plan, &headers(&[("mcp-method", "ping")]), true, &counted).await.unwrap();
        let refused = limiting.after(&mut plan, &call("danger"), &counted).await.unwrap();
        assert!(matches!(refused[..], [(0, TooOften { kind: LimitKind::Tool, .. })]), "{refused:?}");
        assert_eq!(asks(), 4);
        // Now it is known, of the tool and of the endpoint.
        let mut plan = Plan::of(&limits, &caller, "/mcp");
        let refused = limiting.before(&mut plan, &named, true, &counted).await.unwrap_err();
        assert_eq!((refused.kind, asks()), (LimitKind::Tool, 4));
        for expected in [5, 5] {
            let mut plan = Plan::of(&limits, &caller, "/mcp");
            let refused = limiting.before(&mut plan, &headers(&[]), false, &counted).await.unwrap_err();
            assert_eq!((refused.kind, asks()), (LimitKind::Endpoint, expected));
        }
        let mut elsewhere = Plan::of(&limits, &caller, "other");
        limiting.before(&mut elsewhere, &headers(&[]), false, &counted).await.unwrap();
        assert_eq!(asks(), 5, "there is nothing to ask");
        assert_eq!(
            (counted.refused(LimitKind::Tool).get(), counted.refused(LimitKind::Endpoint).get()),
            (2, 2)
        );
    }
}

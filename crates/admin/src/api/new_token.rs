//! What a token may be that is to be made.

use std::collections::BTreeSet;

use chrono::{DateTime, TimeDelta, Utc};
use drawbridge_auth::records::Token;
use drawbridge_auth::scope::{OF_ADMINS, OF_USERS, READ, WRITE};
use drawbridge_auth::token::TokenKind;
use ipnet::IpNet;

use super::BOOTSTRAP;
use super::admission::Caller;
use super::problem::Problem;
use super::tokens::NewToken;

const DEFAULT: TimeDelta = TimeDelta::days(90);
const LONGEST: TimeDelta = TimeDelta::days(366);
const LONGEST_OF_SERVICES: TimeDelta = TimeDelta::days(3660);
const MAX_NAME: usize = 128;
const MAX_ITEMS: usize = 64;

/// The token that is asked for, without a secret.
pub(crate) fn checked(new: NewToken, caller: &Caller, now: DateTime<Utc>) -> Result<Token, Problem> {
    let kind = TokenKind::from(new.kind);
    text("name", &new.name)?;
    if kind == TokenKind::Admin && new.name == BOOTSTRAP {
        return Err(Problem::invalid("name: this one is for the first token of all"));
    }
    whose(kind, &new)?;
    for (member, set) in [("endpoints", &new.endpoints), ("networks", &new.networks), ("groups", &new.groups)]
    {
        if set.len() > MAX_ITEMS {
            return Err(Problem::invalid(format!("{member}: {MAX_ITEMS} at most")));
        }
    }
    let id = drawbridge_auth::fresh_id();
    Ok(Token {
        chain: id.clone(),
        id,
        kind,
        expires_at: end(kind, &new, now)?,
        scopes: scopes(kind, new.scopes, caller)?,
        endpoints: endpoints(kind, new.endpoints)?,
        networks: networks(&new.networks)?,
        groups: groups(kind, new.groups)?,
        name: new.name,
        owner: new.owner,
        service: new.service,
        hint: String::new(),
        version: 0,
        created_by: caller.actor.clone(),
        created_at: now,
        last_used_at: None,
        last_used_from: None,
        revoked_at: None,
        revoked_by: None,
        rotated_to: None,
    })
}

/// A text that people can read and tell from others.
pub(crate) fn text(member: &str, text: &str) -> Result<(), Problem> {
    let length = text.chars().count();
    if length == 0 || length > MAX_NAME || text.trim() != text || text.chars().any(char::is_control) {
        return Err(Problem::invalid(format!(
            "{member}: from 1 to {MAX_NAME} characters are needed, without control characters, or spaces at the ends"
        )));
    }
    Ok(())
}

fn whose(kind: TokenKind, new: &NewToken) -> Result<(), Problem> {
    match (kind, &new.owner, &new.service) {
        (TokenKind::Personal, Some(_), None) | (TokenKind::Admin, None, None) => Ok(()),
        (TokenKind::Service, None, Some(name)) => text("service", name),
        (TokenKind::Personal, ..) => {
            Err(Problem::invalid("owner: a personal token has an owner, the id of a user, and no service"))
        }
        (TokenKind::Service, ..) => {
            Err(Problem::invalid("service: a service token has the name of a service, and no owner"))
        }
        (TokenKind::Admin, ..) => Err(Problem::invalid("kind: an admin token has neither owner nor service")),
    }
}

fn scopes(
    kind: TokenKind,
    asked: Option<BTreeSet<String>>,
    caller: &Caller,
) -> Result<BTreeSet<String>, Problem> {
    let possible: &[&str] = match kind {
        TokenKind::Personal => &OF_USERS,
        TokenKind::Service => &[READ, WRITE],
        TokenKind::Admin => &OF_ADMINS,
    };
    let scopes = match asked {
        Some(scopes) => scopes,
        None if kind == TokenKind::Admin => BTreeSet::new(),
        None => [READ, WRITE].map(str::to_owned).into(),
    };
    let is_impossible = |scope: &&String| !possible.contains(&scope.as_str());
    if let Some(other) = scopes.iter().find(is_impossible) {
        let all = possible.join(", ");
        return Err(Problem::invalid(format!("scopes: {other:?} is none of this kind's: {all}")));
    }
    if scopes.is_empty() {
        return Err(Problem::invalid(format!("scopes: at least one is needed of {}", possible.join(", "))));
    }
    if kind == TokenKind::Admin && !caller.scopes.allow_all(scopes.iter().map(String::as_str)) {
        return Err(Problem::forbidden("scopes: nobody can give more than they have"));
    }
    Ok(scopes)
}

fn endpoints(kind: TokenKind, asked: BTreeSet<String>) -> Result<BTreeSet<String>, Problem> {
    if kind == TokenKind::Admin && !asked.is_empty() {
        return Err(Problem::invalid("endpoints: an admin token is for none"));
    }
    let is_name = |name: &str| {
        (1..=32).contains(&name.len())
            && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
    };
    match asked.iter().find(|name| *name != "*" && !is_name(name)) {
        Some(other) => Err(Problem::invalid(format!(
            "endpoints: {other:?} is no name of an endpoint; `*` stands for all, an empty list for the default one"
        ))),
        None => Ok(asked),
    }
}

fn networks(asked: &BTreeSet<String>) -> Result<BTreeSet<String>, Problem> {
    let network = |text: &String| match text.parse::<IpNet>() {
        Ok(network) => Ok(network.trunc().to_string()),
        Err(_) => Err(Problem::invalid(format!(
            "networks: {text:?} is not in CIDR notation, such as 192.0.2.0/24 or 2001:db8::/32"
        ))),
    };
    asked.iter().map(network).collect()
}

fn groups(kind: TokenKind, asked: BTreeSet<String>) -> Result<BTreeSet<String>, Problem> {
    if kind != TokenKind::Service && !asked.is_empty() {
        return Err(Problem::invalid("groups: only a service has its own; a user's are those of the user"));
    }
    asked.iter().try_for_each(|group| text("groups", group))?;
    Ok(asked)
}

fn end(kind: TokenKind, new: &NewToken, now: DateTime<Utc>) -> Result<Option<DateTime<Utc>>, Problem> {
    let longest = if kind == TokenKind::Service { LONGEST_OF_SERVICES } else { LONGEST };
    let time = match new.expires_in {
        None => DEFAULT,
        Some(None) if kind == TokenKind::Service => return Ok(None),
        Some(None) => return Err(Problem::invalid("expires_in: only a service token can be without an end")),
        Some(Some(time)) => TimeDelta::from_std(time.0).unwrap_or(TimeDelta::MAX),
    };
    if time < TimeDelta::seconds(1) || time > longest {
        return Err(Problem::invalid(format!("expires_in: from 1 second to {} days", longest.num_days())));
    }
    Ok(Some(now + time))
}

//! Tokens that administrators issue.

use std::collections::BTreeMap;
use std::net::IpAddr;

use drawbridge_auth::records::{Page, PageRequest, SecretHash, Time, Token, TokenFilter, TokenStatus, User};
use drawbridge_auth::token::TokenKind;
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, query};

use crate::error::garbled;
use crate::list::List;
use crate::row::{Columns, hex, json, may_exist, micros};
use crate::users;

/// The columns of a token, as [`read`] takes them, each after a prefix.
macro_rules! columns {
    ($of:literal) => {
        concat!(
            $of,
            "id, ",
            $of,
            "kind, ",
            $of,
            "name, ",
            $of,
            "owner, ",
            $of,
            "service, ",
            $of,
            "hint, ",
            $of,
            "scopes, ",
            $of,
            "endpoints, ",
            $of,
            "networks, ",
            $of,
            "groups, ",
            $of,
            "chain, ",
            $of,
            "version, ",
            $of,
            "created_by, ",
            $of,
            "created_at, ",
            $of,
            "expires_at, ",
            $of,
            "last_used_at, ",
            $of,
            "last_used_from, ",
            $of,
            "revoked_at, ",
            $of,
            "revoked_by, ",
            $of,
            "rotated_to"
        )
    };
}
const COLUMNS: usize = 20;

fn read(row: &AnyRow) -> sqlx::Result<Token> {
    let mut columns = Columns::of(row);
    Ok(Token {
        id: columns.text()?,
        kind: TokenKind::parse(&columns.text()?).ok_or_else(|| garbled("the kind of a token"))?,
        name: columns.text()?,
        owner: columns.maybe_text()?,
        service: columns.maybe_text()?,
        hint: columns.text()?,
        scopes: columns.set()?,
        endpoints: columns.set()?,
        networks: columns.set()?,
        groups: columns.set()?,
        chain: columns.text()?,
        version: columns.number()?,
        created_by: columns.text()?,
        created_at: columns.time()?,
        expires_at: columns.maybe_time()?,
        last_used_at: columns.maybe_time()?,
        last_used_from: columns.maybe_text()?,
        revoked_at: columns.maybe_time()?,
        revoked_by: columns.maybe_text()?,
        rotated_to: columns.maybe_text()?,
    })
}

fn one(rows: &[AnyRow]) -> sqlx::Result<Option<Token>> {
    rows.first().map(read).transpose()
}

pub(crate) async fn add(
    connection: &mut AnyConnection,
    token: &Token,
    hash: &SecretHash,
) -> sqlx::Result<()> {
    query(concat!(
        "insert into tokens (hash, ",
        columns!(""),
        ") values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21)"
    ))
    .bind(hex(&hash.0))
    .bind(&token.id)
    .bind(token.kind.as_str())
    .bind(&token.name)
    .bind(&token.owner)
    .bind(&token.service)
    .bind(&token.hint)
    .bind(json(&token.scopes)?)
    .bind(json(&token.endpoints)?)
    .bind(json(&token.networks)?)
    .bind(json(&token.groups)?)
    .bind(&token.chain)
    .bind(token.version)
    .bind(&token.created_by)
    .bind(micros(token.created_at))
    .bind(token.expires_at.map(micros))
    .bind(token.last_used_at.map(micros))
    .bind(&token.last_used_from)
    .bind(token.revoked_at.map(micros))
    .bind(&token.revoked_by)
    .bind(&token.rotated_to)
    .execute(connection)
    .await
    .map(drop)
}

pub(crate) async fn by_secret(
    connection: &mut AnyConnection,
    hash: &SecretHash,
) -> sqlx::Result<Option<(Token, Option<User>)>> {
    let found = query(concat!(
        "select ",
        columns!("t."),
        ", ",
        users::columns!("u."),
        " from tokens t left join users u on u.id = t.owner where t.hash = $1"
    ));
    let rows = found.bind(hex(&hash.0)).fetch_all(connection).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let token = read(row)?;
    let owner = match Columns::skip(row, COLUMNS).maybe_text()? {
        Some(_) => Some(users::read(&mut Columns::skip(row, COLUMNS))?),
        None => None,
    };
    Ok(Some((token, owner)))
}

pub(crate) async fn find(connection: &mut AnyConnection, id: &str) -> sqlx::Result<Option<Token>> {
    if !may_exist(id) {
        return Ok(None);
    }
    let found = query(concat!("select ", columns!(""), " from tokens where id = $1"));
    one(&found.bind(id).fetch_all(connection).await?)
}

pub(crate) async fn page(
    connection: &mut AnyConnection,
    filter: &TokenFilter,
    page: &PageRequest,
    now: Time,
) -> sqlx::Result<Page<Token>> {
    let mut list = List::of(columns!(""), "tokens");
    list.only_text("owner", filter.owner.as_deref())?;
    list.only_text("kind", filter.kind.map(TokenKind::as_str))?;
    if !filter.status.is_empty() {
        let now = list.bind(micros(now))?;
        let states = filter.status.iter().map(|status| match status {
            TokenStatus::Active => {
                format!("(revoked_at is null and (expires_at is null or expires_at > {now}))")
            }
            TokenStatus::Expired => format!("(revoked_at is null and expires_at <= {now})"),
            // The time is in every list's statement, so that there is always one to bind.
            TokenStatus::Revoked => format!("(revoked_at is not null and {now} = {now})"),
        });
        let states = states.collect::<Vec<_>>().join(" or ");
        list.only(format!("({states})"));
    }
    list.page(connection, page, read, |token| &token.id).await
}

pub(crate) async fn revoke(
    connection: &mut AnyConnection,
    id: &str,
    by: &str,
    now: Time,
) -> sqlx::Result<Option<Token>> {
    let Some(before) = lock(connection, id).await? else { return Ok(None) };
    if before.revoked_at.is_none() {
        query("update tokens set revoked_at = $2, revoked_by = $3, version = version + 1 where id = $1")
            .bind(id)
            .bind(micros(now))
            .bind(by)
            .execute(connection)
            .await?;
    }
    Ok(Some(before))
}

pub(crate) async fn rotate(
    connection: &mut AnyConnection,
    id: &str,
    successor: &Token,
    hash: &SecretHash,
    end: Time,
    now: Time,
) -> sqlx::Result<Option<Token>> {
    let Some(before) = lock(connection, id).await? else { return Ok(None) };
    if before.status(now) != TokenStatus::Active || before.rotated_to.is_some() {
        return Ok(None);
    }
    add(connection, successor, hash).await?;
    let end = before.expires_at.map_or(end, |before| before.min(end));
    query("update tokens set expires_at = $2, rotated_to = $3, version = version + 1 where id = $1")
        .bind(id)
        .bind(micros(end))
        .bind(&successor.id)
        .execute(connection)
        .await?;
    Ok(Some(before))
}

/// The token, which nobody else changes until the transaction ends.
async fn lock(connection: &mut AnyConnection, id: &str) -> sqlx::Result<Option<Token>> {
    if !may_exist(id) {
        return Ok(None);
    }
    let lock = query(concat!("update tokens set version = version where id = $1 returning ", columns!("")));
    one(&lock.bind(id).fetch_all(connection).await?)
}

/// The last use of each token, in the order of ids: who locks rows in one order never waits in a circle.
pub(crate) fn last_uses(uses: &[(String, Time, Option<IpAddr>)]) -> Vec<(&str, Time, Option<IpAddr>)> {
    let mut last = BTreeMap::new();
    for (id, at, from) in uses.iter().filter(|(id, ..)| may_exist(id)) {
        let entry = last.entry(id.as_str()).or_insert((*at, *from));
        if entry.0 < *at {
            *entry = (*at, *from);
        }
    }
    last.into_iter().map(|(id, (at, from))| (id, at, from)).collect()
}

pub(crate) async fn touch(
    connection: &mut AnyConnection,
    uses: &[(&str, Time, Option<IpAddr>)],
) -> sqlx::Result<()> {
    for (id, at, from) in uses {
        query(
            "update tokens set last_used_at = $2, last_used_from = $3 \
             where id = $1 and (last_used_at is null or last_used_at < $2)",
        )
        .bind(*id)
        .bind(micros(*at))
        .bind(from.map(|from| from.to_string()))
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}

pub(crate) async fn any_active(
    connection: &mut AnyConnection,
    kind: TokenKind,
    except: &str,
    now: Time,
) -> sqlx::Result<bool> {
    let found = query(
        "select id from tokens where kind = $1 and name <> $2 and revoked_at is null \
         and (expires_at is null or expires_at > $3) limit 1",
    );
    let found = found.bind(kind.as_str()).bind(except).bind(micros(now));
    Ok(!found.fetch_all(connection).await?.is_empty())
}

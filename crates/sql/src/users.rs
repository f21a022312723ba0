//! Users.

use drawbridge_auth::records::{Page, PageRequest, Time, User, UserClaims};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, query};

use crate::list::List;
use crate::row::{Columns, json, may_exist, micros};

/// The columns of a user, as [`read`] takes them, each after a prefix.
macro_rules! columns {
    ($of:literal) => {
        concat!(
            $of,
            "id, ",
            $of,
            "issuer, ",
            $of,
            "subject, ",
            $of,
            "email, ",
            $of,
            "name, ",
            $of,
            "groups, ",
            $of,
            "version, ",
            $of,
            "created_at, ",
            $of,
            "claims_at, ",
            $of,
            "disabled_at"
        )
    };
}
pub(crate) use columns;

pub(crate) fn read(columns: &mut Columns<'_>) -> sqlx::Result<User> {
    Ok(User {
        id: columns.text()?,
        issuer: columns.text()?,
        subject: columns.text()?,
        email: columns.maybe_text()?,
        name: columns.maybe_text()?,
        groups: columns.set()?,
        version: columns.number()?,
        created_at: columns.time()?,
        claims_at: columns.maybe_time()?,
        disabled_at: columns.maybe_time()?,
    })
}

fn one(rows: &[AnyRow]) -> sqlx::Result<Option<User>> {
    rows.first().map(|row| read(&mut Columns::of(row))).transpose()
}

pub(crate) async fn enter(
    connection: &mut AnyConnection,
    id_if_new: &str,
    claims: &UserClaims,
    now: Time,
) -> sqlx::Result<User> {
    let entered = query(concat!(
        "insert into users (id, issuer, subject, email, name, groups, version, created_at, claims_at) \
         values ($1, $2, $3, $4, $5, $6, 1, $7, $7) \
         on conflict (issuer, subject) do update set email = excluded.email, name = excluded.name, \
         groups = excluded.groups, claims_at = excluded.claims_at, \
         version = users.version + case when users.groups = excluded.groups then 0 else 1 end returning ",
        columns!("")
    ));
    let entered = entered.bind(id_if_new).bind(&claims.issuer).bind(&claims.subject);
    let entered =
        entered.bind(&claims.email).bind(&claims.name).bind(json(&claims.groups)?).bind(micros(now));
    one(&entered.fetch_all(connection).await?)?.ok_or(sqlx::Error::RowNotFound)
}

pub(crate) async fn find(connection: &mut AnyConnection, id: &str) -> sqlx::Result<Option<User>> {
    if !may_exist(id) {
        return Ok(None);
    }
    let found = query(concat!("select ", columns!(""), " from users where id = $1"));
    one(&found.bind(id).fetch_all(connection).await?)
}

pub(crate) async fn find_by_subject(
    connection: &mut AnyConnection,
    issuer: &str,
    subject: &str,
) -> sqlx::Result<Option<User>> {
    if !may_exist(issuer) || !may_exist(subject) {
        return Ok(None);
    }
    let found = query(concat!("select ", columns!(""), " from users where issuer = $1 and subject = $2"));
    one(&found.bind(issuer).bind(subject).fetch_all(connection).await?)
}

pub(crate) async fn page(connection: &mut AnyConnection, page: &PageRequest) -> sqlx::Result<Page<User>> {
    let list = List::of(columns!(""), "users");
    list.page(connection, page, |row| read(&mut Columns::of(row)), |user| &user.id).await
}

/// The version before.
pub(crate) async fn raise_version(connection: &mut AnyConnection, id: &str) -> sqlx::Result<Option<i64>> {
    if !may_exist(id) {
        return Ok(None);
    }
    let raise =
        query(concat!("update users set version = version + 1 where id = $1 returning ", columns!("")));
    let after = one(&raise.bind(id).fetch_all(connection).await?)?;
    Ok(after.map(|user: User| user.version - 1))
}

/// In a transaction. A user as before and after.
pub(crate) async fn set_disabled(
    connection: &mut AnyConnection,
    id: &str,
    disabled: bool,
    now: Time,
) -> sqlx::Result<Option<(User, User)>> {
    if !may_exist(id) {
        return Ok(None);
    }
    // Changes nothing, but from here on nobody else does either.
    let lock = query(concat!("update users set version = version where id = $1 returning ", columns!("")));
    let Some(before) = one(&lock.bind(id).fetch_all(&mut *connection).await?)? else { return Ok(None) };
    if before.disabled_at.is_some() == disabled {
        return Ok(Some((before.clone(), before)));
    }
    let set = query(concat!(
        "update users set disabled_at = $2, version = version + 1 where id = $1 returning ",
        columns!("")
    ));
    let set = set.bind(id).bind(disabled.then(|| micros(now)));
    let after = one(&set.fetch_all(connection).await?)?.ok_or(sqlx::Error::RowNotFound)?;
    Ok(Some((before, after)))
}

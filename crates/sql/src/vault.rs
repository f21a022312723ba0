//! What users have at other servers, and where that is from.

use async_trait::async_trait;
use drawbridge_auth::records::Result;
use drawbridge_auth::vault::{Authority, Connection, ConnectionStatus, Turn, Vault};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, query};

use crate::error::garbled;
use crate::row::{Columns, json, may_exist, micros};
use crate::store::SqlRecords;

macro_rules! authority {
    () => {
        "backend, issuer, resource, metadata, found, client_id, client_secret, pinned_at"
    };
}

macro_rules! connection {
    () => {
        "id, user_id, backend, issuer, resource, client_id, scopes, wanted, access, refresh, id_token, expires_at, \
         status, version, last_error, created_at, updated_at"
    };
}

fn authority(row: &AnyRow) -> sqlx::Result<Authority> {
    let mut columns = Columns::of(row);
    Ok(Authority {
        backend: columns.text()?,
        issuer: columns.text()?,
        resource: columns.text()?,
        metadata: columns.json()?,
        found: columns.maybe_text()?,
        client_id: columns.maybe_text()?,
        client_secret: columns.maybe_text()?,
        pinned_at: columns.time()?,
    })
}

fn connection(row: &AnyRow) -> sqlx::Result<Connection> {
    let mut columns = Columns::of(row);
    Ok(Connection {
        id: columns.text()?,
        user: columns.text()?,
        backend: columns.text()?,
        issuer: columns.text()?,
        resource: columns.text()?,
        client: columns.text()?,
        scopes: columns.set()?,
        wanted: columns.set()?,
        access: columns.text()?,
        refresh: columns.maybe_text()?,
        id_token: columns.maybe_text()?,
        expires_at: columns.maybe_time()?,
        status: ConnectionStatus::parse(&columns.text()?).ok_or_else(|| garbled("a status"))?,
        version: columns.number()?,
        last_error: columns.maybe_text()?,
        created_at: columns.time()?,
        updated_at: columns.time()?,
    })
}

fn one<T>(rows: &[AnyRow], read: impl Fn(&AnyRow) -> sqlx::Result<T>) -> sqlx::Result<Option<T>> {
    rows.first().map(read).transpose()
}

async fn find_authority(c: &mut AnyConnection, backend: &str) -> sqlx::Result<Option<Authority>> {
    let found = query(concat!("select ", authority!(), " from authorities where backend = $1")).bind(backend);
    one(&found.fetch_all(c).await?, authority)
}

async fn pin(c: &mut AnyConnection, new: &Authority) -> sqlx::Result<Option<Authority>> {
    let pin = query(concat!(
        "insert into authorities (",
        authority!(),
        ") values ($1, $2, $3, $4, $5, $6, $7, $8) on conflict (backend) do nothing"
    ));
    let pin = pin.bind(&new.backend).bind(&new.issuer).bind(&new.resource).bind(json(&new.metadata)?);
    let pin = pin.bind(&new.found).bind(&new.client_id).bind(&new.client_secret).bind(micros(new.pinned_at));
    pin.execute(&mut *c).await?;
    find_authority(c, &new.backend).await
}

async fn replace(c: &mut AnyConnection, before: &str, new: &Authority) -> sqlx::Result<Option<Authority>> {
    let replace = query(
        "update authorities set issuer = $3, resource = $4, metadata = $5, found = $6, client_id = $7, \
         client_secret = $8, pinned_at = $9 where backend = $1 and issuer = $2",
    );
    let replace = replace.bind(&new.backend).bind(before).bind(&new.issuer).bind(&new.resource);
    let replace = replace.bind(json(&new.metadata)?).bind(&new.found).bind(&new.client_id);
    replace.bind(&new.client_secret).bind(micros(new.pinned_at)).execute(&mut *c).await?;
    find_authority(c, &new.backend).await
}

async fn register(
    c: &mut AnyConnection,
    (backend, issuer): (&str, &str),
    client: &str,
    secret: Option<&str>,
) -> sqlx::Result<Option<Authority>> {
    let register = query(
        "update authorities set client_id = $3, client_secret = $4 \
         where backend = $1 and issuer = $2 and client_id is null",
    );
    register.bind(backend).bind(issuer).bind(client).bind(secret).execute(&mut *c).await?;
    find_authority(c, backend).await
}

async fn find(c: &mut AnyConnection, user: &str, backend: &str) -> sqlx::Result<Option<Connection>> {
    let found =
        query(concat!("select ", connection!(), " from connections where user_id = $1 and backend = $2"));
    one(&found.bind(user).bind(backend).fetch_all(c).await?, connection)
}

async fn put(c: &mut AnyConnection, new: &Connection) -> sqlx::Result<Option<Connection>> {
    // The version counts on, so that whoever renews the one before finds that it is another.
    let put = query(concat!(
        "insert into connections (",
        connection!(),
        ") values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17) \
         on conflict (user_id, backend) do update set issuer = excluded.issuer, resource = excluded.resource, \
         client_id = excluded.client_id, scopes = excluded.scopes, wanted = excluded.wanted, \
         access = excluded.access, refresh = excluded.refresh, id_token = excluded.id_token, \
         expires_at = excluded.expires_at, status = excluded.status, version = connections.version + 1, \
         last_error = excluded.last_error, updated_at = excluded.updated_at, turn_by = null, turn_until = null"
    ));
    let put = put.bind(&new.id).bind(&new.user).bind(&new.backend).bind(&new.issuer).bind(&new.resource);
    let put = put.bind(&new.client).bind(json(&new.scopes)?).bind(json(&new.wanted)?).bind(&new.access);
    let put = put.bind(&new.refresh).bind(&new.id_token).bind(new.expires_at.map(micros));
    let put = put.bind(new.status.as_str()).bind(new.version).bind(&new.last_error);
    put.bind(micros(new.created_at)).bind(micros(new.updated_at)).execute(&mut *c).await?;
    find(c, &new.user, &new.backend).await
}

async fn change(c: &mut AnyConnection, new: &Connection) -> sqlx::Result<bool> {
    let change = query(
        "update connections set scopes = $3, wanted = $4, access = $5, refresh = $6, id_token = $7, expires_at = $8, \
         status = $9, last_error = $10, updated_at = $11, version = version + 1, turn_by = null, turn_until = null \
         where id = $1 and version = $2",
    );
    let change = change.bind(&new.id).bind(new.version).bind(json(&new.scopes)?).bind(json(&new.wanted)?);
    let change = change.bind(&new.access).bind(&new.refresh).bind(&new.id_token);
    let change = change.bind(new.expires_at.map(micros)).bind(new.status.as_str()).bind(&new.last_error);
    Ok(change.bind(micros(new.updated_at)).execute(c).await?.rows_affected() > 0)
}

async fn take_turn(c: &mut AnyConnection, id: &str, version: i64, turn: Turn<'_>) -> sqlx::Result<bool> {
    let take = query(
        "update connections set turn_by = $3, turn_until = $4 \
         where id = $1 and version = $2 and (turn_until is null or turn_until <= $5)",
    );
    let take = take.bind(id).bind(version).bind(turn.by).bind(micros(turn.until)).bind(micros(turn.now));
    Ok(take.execute(c).await?.rows_affected() > 0)
}

async fn remove(c: &mut AnyConnection, user: &str, backend: &str) -> sqlx::Result<Option<Connection>> {
    let remove = query(concat!(
        "delete from connections where user_id = $1 and backend = $2 returning ",
        connection!()
    ));
    one(&remove.bind(user).bind(backend).fetch_all(c).await?, connection)
}

#[async_trait]
impl Vault for SqlRecords {
    async fn authority(&self, backend: &str) -> Result<Option<Authority>> {
        self.pools().read(async |c| find_authority(c, backend).await).await
    }

    async fn pin_authority(&self, new: &Authority) -> Result<Authority> {
        let pinned = self.pools().transact(async |c| pin(c, new).await).await?;
        Ok(pinned.unwrap_or_else(|| new.clone()))
    }

    async fn replace_authority(&self, before: &str, new: &Authority) -> Result<Option<Authority>> {
        self.pools().transact(async |c| replace(c, before, new).await).await
    }

    async fn note_authority(&self, backend: &str, found: Option<&str>) -> Result<()> {
        let note = async |c: &mut AnyConnection| {
            let note = query("update authorities set found = $2 where backend = $1");
            note.bind(backend).bind(found).execute(c).await.map(drop)
        };
        self.pools().write(note).await
    }

    async fn register_at(
        &self,
        backend: &str,
        issuer: &str,
        client: &str,
        secret: Option<&str>,
    ) -> Result<Option<Authority>> {
        self.pools().transact(async |c| register(c, (backend, issuer), client, secret).await).await
    }

    async fn forget_client(&self, backend: &str, issuer: &str, client: &str) -> Result<()> {
        let forget = async |c: &mut AnyConnection| {
            let forget = query(
                "update authorities set client_id = null, client_secret = null \
                 where backend = $1 and issuer = $2 and client_id = $3",
            );
            forget.bind(backend).bind(issuer).bind(client).execute(c).await.map(drop)
        };
        self.pools().write(forget).await
    }

    async fn connection(&self, user: &str, backend: &str) -> Result<Option<Connection>> {
        if !may_exist(user) || !may_exist(backend) {
            return Ok(None);
        }
        self.pools().read(async |c| find(c, user, backend).await).await
    }

    async fn connections(&self, user: &str) -> Result<Vec<Connection>> {
        if !may_exist(user) {
            return Ok(Vec::new());
        }
        let all = async |c: &mut AnyConnection| {
            let all =
                concat!("select ", connection!(), " from connections where user_id = $1 order by backend");
            query(all).bind(user).fetch_all(c).await?.iter().map(connection).collect()
        };
        self.pools().read(all).await
    }

    async fn put_connection(&self, new: &Connection) -> Result<Connection> {
        let put = self.pools().transact(async |c| put(c, new).await).await?;
        Ok(put.unwrap_or_else(|| new.clone()))
    }

    async fn change_connection(&self, new: &Connection) -> Result<bool> {
        self.pools().write(async |c| change(c, new).await).await
    }

    async fn take_turn(&self, id: &str, version: i64, turn: Turn<'_>) -> Result<bool> {
        self.pools().write(async |c| take_turn(c, id, version, turn).await).await
    }

    async fn give_back(&self, id: &str, by: &str) -> Result<()> {
        let give = async |c: &mut AnyConnection| {
            let give = query(
                "update connections set turn_by = null, turn_until = null where id = $1 and turn_by = $2",
            );
            give.bind(id).bind(by).execute(c).await.map(drop)
        };
        self.pools().write(give).await
    }

    async fn remove_connection(&self, user: &str, backend: &str) -> Result<Option<Connection>> {
        if !may_exist(user) || !may_exist(backend) {
            return Ok(None);
        }
        self.pools().write(async |c| remove(c, user, backend).await).await
    }

    async fn sealed_before(&self, key: &str, limit: u32) -> Result<Vec<Connection>> {
        let found = async |c: &mut AnyConnection| {
            let found = query(concat!(
                "select ",
                connection!(),
                " from connections where substr(access, 1, cast($2 as integer)) <> $1 order by id limit $3"
            ));
            let prefix = format!("{key}.");
            let length = i64::try_from(prefix.len()).unwrap_or_default();
            let found = found.bind(prefix).bind(length).bind(i64::from(limit));
            found.fetch_all(c).await?.iter().map(connection).collect()
        };
        self.pools().read(found).await
    }
}

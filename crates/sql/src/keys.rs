//! Signing keys.

use drawbridge_auth::records::{SigningKey, Time};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, query};

use crate::row::{Columns, json, micros};

macro_rules! columns {
    () => {
        "kid, algorithm, private_key, public_key, not_before, retires_at"
    };
}

fn read(row: &AnyRow) -> sqlx::Result<SigningKey> {
    let mut columns = Columns::of(row);
    Ok(SigningKey {
        kid: columns.text()?,
        algorithm: columns.text()?,
        private: columns.text()?,
        public: columns.json()?,
        not_before: columns.time()?,
        retires_at: columns.time()?,
    })
}

pub(crate) async fn all(
    connection: &mut AnyConnection,
    retired_after: Time,
) -> sqlx::Result<Vec<SigningKey>> {
    let all = query(concat!(
        "select ",
        columns!(),
        " from signing_keys where retires_at > $1 order by not_before, kid"
    ));
    let rows = all.bind(micros(retired_after)).fetch_all(connection).await?;
    rows.iter().map(read).collect()
}

pub(crate) async fn add(connection: &mut AnyConnection, key: &SigningKey) -> sqlx::Result<()> {
    query(concat!("insert into signing_keys (", columns!(), ") values ($1, $2, $3, $4, $5, $6)"))
        .bind(&key.kid)
        .bind(&key.algorithm)
        .bind(&key.private)
        .bind(json(&key.public)?)
        .bind(micros(key.not_before))
        .bind(micros(key.retires_at))
        .execute(connection)
        .await
        .map(drop)
}

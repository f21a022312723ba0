//! The verifier by itself.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, anyhow};
use chrono::{TimeDelta, Utc};
use drawbridge_auth::named_clients::NamedClients;
use drawbridge_auth::records::{Records, Token, User, UserClaims};
use drawbridge_auth::resource::Origin;
use drawbridge_auth::revoking::Revocations;
use drawbridge_auth::signing::{Access, Signer};
use drawbridge_auth::token::{Secret, SecretKind, TokenKind};
use drawbridge_auth::verifier::{Issuer, Verifier};
use drawbridge_core::Tasks;
use drawbridge_core::revocation::MemoryRevocations;
use drawbridge_core::seal::{KeyRing, SealKey};
use drawbridge_core::state::{MemoryLimiter, WithFallback};
use drawbridge_sql::{SqlOptions, SqlRecords};
use tempfile::TempDir;

use super::AuthArgs;
use crate::report::{median, number, range};

/// What a warm token may cost, in microseconds.
const AIM: f64 = 5.0;
const ORIGIN: &str = "http://localhost:9";

struct Bench {
    verifier: Verifier,
    records: Arc<SqlRecords>,
    signer: Arc<Signer>,
    user: User,
}

impl Bench {
    async fn open(folder: &std::path::Path) -> anyhow::Result<Self> {
        let url = format!("sqlite:{}", folder.join("records.db").display());
        let records = Arc::new(SqlRecords::open(&url, &SqlOptions::default())?);
        records.migrate().await?;
        let dynamic: Arc<dyn Records> = records.clone();
        let ring = KeyRing::new(&[SealKey { id: "bench".to_owned(), secret: [7; 32] }])
            .map_err(|error| anyhow!("{error}"))?;
        let revocations = Revocations::new(dynamic.clone(), Arc::new(MemoryRevocations::default()));
        revocations.read().await?;
        let signer = Arc::new(Signer::new(ORIGIN, dynamic.clone(), Arc::new(ring)));
        signer.tend().await?;
        let own = Issuer {
            policy: signer.policy(),
            keys: signer.clone(),
            own: Some(Arc::new(NamedClients::new(revocations.clone()))),
            introspection: None,
        };
        let limiter = WithFallback::new(Arc::new(MemoryLimiter::default()));
        let origin = Origin::of(&ORIGIN.parse()?);
        let verifier =
            Verifier::new(Some(origin), dynamic, revocations, vec![own], limiter, Tasks::default());
        let claims = UserClaims {
            issuer: "local".to_owned(),
            subject: "bench".to_owned(),
            email: None,
            name: None,
            groups: BTreeSet::new(),
        };
        let user = records.enter_user(&drawbridge_auth::fresh_id(), &claims, Utc::now()).await?;
        Ok(Self { verifier, records, signer, user })
    }

    /// A token in the records.
    async fn issued(&self) -> anyhow::Result<String> {
        let (id, now) = (drawbridge_auth::fresh_id(), Utc::now());
        let secret = Secret::fresh(SecretKind::Personal);
        let token = Token {
            chain: id.clone(),
            id,
            kind: TokenKind::Personal,
            name: "bench".to_owned(),
            owner: Some(self.user.id.clone()),
            service: None,
            hint: secret.hint().to_owned(),
            scopes: ["mcp:read".to_owned(), "mcp:write".to_owned()].into(),
            endpoints: BTreeSet::new(),
            networks: BTreeSet::new(),
            groups: BTreeSet::new(),
            version: 1,
            created_by: "bench".to_owned(),
            created_at: now,
            expires_at: Some(now + TimeDelta::days(1)),
            last_used_at: None,
            last_used_from: None,
            revoked_at: None,
            revoked_by: None,
            rotated_to: None,
        };
        self.records.add_token(&token, &secret.hash()).await?;
        Ok(secret.expose().to_owned())
    }

    /// An access token, signed with ES256.
    fn signed(&self) -> anyhow::Result<String> {
        let now = Utc::now();
        let access = Access {
            subject: &self.user.id,
            client: "bench",
            resource: &format!("{ORIGIN}/mcp"),
            scope: "mcp:read mcp:write",
            grant: &drawbridge_auth::fresh_id(),
            refresh: Some("none"),
            user_version: Some(self.user.version),
            client_version: None,
            auth_time: Some(now.timestamp()),
        };
        Ok(self.signer.issue(&access, now, now + TimeDelta::hours(1))?)
    }

    async fn verify(&self, token: &str) -> anyhow::Result<()> {
        let verified = self.verifier.verify(token, None, None).await;
        verified.map(drop).map_err(|why| anyhow!("not accepted: {why:?}"))
    }

    /// Microseconds of each of `tokens`, one after another.
    async fn each(&self, tokens: &[String]) -> anyhow::Result<Vec<f64>> {
        let mut took = Vec::new();
        for token in tokens {
            let begin = Instant::now();
            self.verify(token).await?;
            took.push(begin.elapsed().as_secs_f64() * 1e6);
        }
        Ok(took)
    }

    /// Microseconds of one that is known, in so many batches.
    async fn warm(&self, token: &str, batches: usize, each: u32) -> anyhow::Result<Vec<f64>> {
        let mut took = Vec::new();
        for _ in 0..batches {
            let begin = Instant::now();
            for _ in 0..each {
                self.verify(token).await?;
            }
            took.push(begin.elapsed().as_secs_f64() * 1e6 / f64::from(each));
        }
        Ok(took)
    }
}

pub(super) fn run(args: &AuthArgs) -> anyhow::Result<()> {
    let files = TempDir::new()?;
    let (batches, each) = if args.quick { (3, 1000) } else { (9, 50_000) };
    crate::net::runtime()?.block_on(async {
        let bench = Bench::open(files.path()).await?;
        let (mut issued, mut signed) = (Vec::new(), Vec::new());
        for _ in 0..args.tokens {
            issued.push(bench.issued().await?);
            signed.push(bench.signed()?);
        }
        println!("the verifier alone, SQLite; microseconds, median [least..most]");
        let cold_issued = bench.each(&issued).await?;
        let cold_signed = bench.each(&signed).await?;
        let first = |tokens: &[String]| tokens.first().cloned().context("no token");
        let warm_issued = bench.warm(&first(&issued)?, batches, each).await?;
        let warm_signed = bench.warm(&first(&signed)?, batches, each).await?;
        for (name, took, aim) in [
            ("issued token, warm", warm_issued, Some(AIM)),
            ("ES256 access token, warm", warm_signed, Some(AIM)),
            ("issued token, first seen", cold_issued, None),
            ("ES256 access token, first seen", cold_signed, None),
        ] {
            let middle = median(&took);
            let verdict = match aim {
                Some(aim) if middle <= aim => format!("  within the aim of {aim}"),
                Some(aim) => format!("  over the aim of {aim}"),
                None => String::new(),
            };
            println!("{name:<32} {:>8} {}{verdict}", number(middle, 2), range(&took, 2));
        }
        Ok(())
    })
}

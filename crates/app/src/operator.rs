//! The commands for operators: `token`, `audit` and `migrate`. `token` is a client of the admin API: of a running gateway, or,
//! where there is none that can be reached, of one that is made for the moment over the database itself.

mod audit;

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use axum::Router;
use axum::body::Body;
use drawbridge_admin::api::{Admission, Api};
use drawbridge_auth::audit::{AuditTrail, UNSIGNED_ACTOR};
use drawbridge_auth::fetch::Fetch as _;
use drawbridge_auth::records::Records;
use drawbridge_auth::revoking::Revocations;
use drawbridge_auth::token::PREFIX;
use drawbridge_core::revocation::MemoryRevocations;
use drawbridge_core::state::{MemoryClaims, MemoryLimiter};
use drawbridge_sql::{SqlOptions, SqlRecords};
use drawbridge_upstream::OutboundOptions;
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tower::ServiceExt as _;
use url::Url;

pub use audit::audit;

use crate::access::database_url;
use crate::cli::{AdminArgs, CreateArgs, ListArgs, MigrateArgs, RotateArgs, TokenArgs, TokenCommand};
use crate::config;
use crate::fetch::Fetcher;

/// No answer of the admin API is larger.
const MAX_ANSWER: usize = 4 * 1024 * 1024;
/// Whom the audit trail names if somebody works on the database itself.
const ACTOR: &str = UNSIGNED_ACTOR;
/// So many tokens are asked for at once.
const PARTS: &str = "200";

/// What a command has to say.
#[derive(Debug, Default)]
pub struct Said {
    /// What was asked for; goes to standard output.
    pub result: String,
    /// What is to be known beside; goes to standard error.
    pub notes: String,
}

/// Brings the database up to date, or says what it lacks.
///
/// # Errors
///
/// If the database can't be used, or lacks something and is only to be checked.
pub async fn migrate(args: MigrateArgs, env: HashMap<String, String>) -> anyhow::Result<Said> {
    let check = args.check;
    let loaded = config::load(&args.inputs(env))?;
    let records = SqlRecords::open(&database_url(&loaded.config), &SqlOptions::default())?;
    let place = records.shown().to_owned();
    let mut said = Said::default();
    if check {
        let pending = records.pending().await.with_context(|| place.clone())?;
        if !pending.is_empty() {
            bail!("{place} lacks {}: run `drawbridge migrate`", pending.join(", "));
        }
    } else {
        for name in records.migrate().await.with_context(|| place.clone())? {
            let _ = writeln!(said.result, "applied {name}");
        }
    }
    let _ = writeln!(said.result, "{place} is up to date");
    records.close().await;
    Ok(said)
}

/// Does something with tokens.
///
/// # Errors
///
/// If that is not possible; the words say what to do.
pub async fn token(args: TokenArgs, env: &HashMap<String, String>) -> anyhow::Result<Said> {
    let admin = Admin::of(&args.at, env).await?;
    let said = match args.command {
        TokenCommand::Create(create) => admin.create(create).await,
        TokenCommand::List(list) => admin.list(list).await,
        TokenCommand::Revoke(revoke) => admin.revoke(&revoke.token).await,
        TokenCommand::Rotate(rotate) => admin.rotate(&rotate).await,
    };
    admin.close().await;
    said
}

/// The admin API, wherever it is.
enum Admin {
    Remote { url: Url, token: String, fetcher: Box<Fetcher> },
    Database { router: Router, records: Arc<SqlRecords> },
}

impl Admin {
    async fn of(args: &AdminArgs, env: &HashMap<String, String>) -> anyhow::Result<Self> {
        if let Some(database) = &args.database {
            return Self::over(database.expose()).await;
        }
        let token = match &args.admin_token_file {
            Some(path) => from_file(path)?,
            None => env.get("DRAWBRIDGE_ADMIN_TOKEN").cloned().unwrap_or_default(),
        };
        if token.trim().is_empty() {
            bail!(
                "no admin token: set DRAWBRIDGE_ADMIN_TOKEN, or name a file with --admin-token-file. A gateway without any \
                 prints one when it first starts; --database URL needs none"
            );
        }
        let options = OutboundOptions {
            ca_bundles: Vec::new(),
            proxy: None,
            connect_timeout: Duration::from_secs(5),
            workers: 1,
            client_certificate: None,
        };
        let url = args.admin_url.clone();
        if url.cannot_be_a_base() || !matches!(url.scheme(), "http" | "https") {
            bail!("--admin-url is not an http or https URL: {url}");
        }
        Ok(Self::Remote { url, token: token.trim().to_owned(), fetcher: Box::new(Fetcher::new(options)) })
    }

    async fn over(database: &str) -> anyhow::Result<Self> {
        let records = Arc::new(SqlRecords::open(database, &SqlOptions::default())?);
        let pending = records.pending().await.with_context(|| records.shown().to_owned())?;
        if !pending.is_empty() {
            bail!("{} lacks {}: run `drawbridge migrate` first", records.shown(), pending.join(", "));
        }
        let port: Arc<dyn Records> = records.clone();
        let router = drawbridge_admin::api::routes(Api {
            admission: Admission::Anybody { actor: ACTOR },
            // Instances read in the database what is revoked there, so nobody has to be told here.
            revocations: Revocations::new(port.clone(), Arc::new(MemoryRevocations::default())),
            trail: Arc::new(AuditTrail::new(records.clone())),
            audit: records.clone(),
            records: port,
            claims: Arc::new(MemoryClaims::default()),
            limiter: Arc::new(MemoryLimiter::default()),
            trouble: Arc::new(|| None),
            gateway: None,
        });
        Ok(Self::Database { router, records })
    }

    async fn close(&self) {
        if let Self::Database { records, .. } = self {
            records.close().await;
        }
    }

    /// The answer to a request, if it is a good one.
    async fn ask(&self, method: &str, path: &Where<'_>, body: Option<Value>) -> anyhow::Result<Value> {
        let base = match self {
            Self::Remote { url, .. } => url.clone(),
            Self::Database { .. } => Url::parse("http://database")?,
        };
        let url = path.under(base);
        let request = Request::builder().method(method).uri(url.as_str());
        let request = request.header("content-type", "application/json");
        let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let (status, answer) = match self {
            Self::Remote { url, token, fetcher } => {
                let request = request.header("authorization", format!("Bearer {token}")).body(body)?;
                let answer = fetcher.fetch(request, MAX_ANSWER).await.with_context(|| {
                    format!(
                        "no admin API answers at {url}: is the gateway up, and is --admin-url (DRAWBRIDGE_ADMIN_URL) its \
                         admin.listen? --database URL works without a gateway"
                    )
                })?;
                (answer.status(), answer.into_body())
            }
            Self::Database { router, .. } => {
                let answer = router.clone().oneshot(request.body(Body::from(body))?).await?;
                (answer.status(), answer.into_body().collect().await?.to_bytes().to_vec())
            }
        };
        if status.is_success() && answer.is_empty() {
            return Ok(Value::Null);
        }
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        if status.is_success() && answer.is_object() {
            return Ok(answer);
        }
        bail!("{}", explained(status, answer["detail"].as_str()))
    }

    async fn create(&self, args: CreateArgs) -> anyhow::Result<Said> {
        let mut notes = String::new();
        let owner = match &args.owner {
            Some(owner) => Some(self.owner(owner, args.create_owner, &mut notes).await?),
            None => None,
        };
        let mut new = json!({ "kind": args.kind.as_str(), "name": args.name });
        let mut set = |member: &str, value: Value| new[member] = value;
        if let Some(owner) = owner {
            set("owner", owner.into());
        }
        if let Some(service) = args.service {
            set("service", service.into());
        }
        let lists = [("endpoints", args.endpoints), ("networks", args.networks), ("groups", args.groups)];
        for (member, list) in lists {
            set(member, unique(list));
        }
        if !args.scopes.is_empty() {
            set("scopes", unique(args.scopes));
        }
        match args.expires_in.as_deref() {
            None => {}
            Some("never") => set("expires_in", Value::Null),
            Some(time) => set("expires_in", time.into()),
        }
        let made = self.ask("POST", &Where::of(&["tokens"]), Some(new)).await?;
        Ok(issued(&made, args.json, notes))
    }

    /// The id of the user who is meant: by id, or by the subject of one that was made here.
    async fn owner(&self, owner: &str, may_create: bool, notes: &mut String) -> anyhow::Result<String> {
        let by_id = self.ask("GET", &Where::of(&["users", owner]), None).await;
        if let Ok(user) = by_id {
            return id_of(&user);
        }
        let mut by_subject = Where::of(&["users"]);
        by_subject.query.push(("subject", owner.to_owned()));
        let found = self.ask("GET", &by_subject, None).await?;
        if let Some(user) = found["items"].get(0) {
            return id_of(user);
        }
        if !may_create {
            bail!("there is no user with the id or subject {owner:?}; --create-owner makes one");
        }
        let made = self.ask("POST", &Where::of(&["users"]), Some(json!({ "subject": owner }))).await?;
        let id = id_of(&made)?;
        let _ = writeln!(notes, "made user {id} ({owner})");
        Ok(id)
    }

    async fn list(&self, args: ListArgs) -> anyhow::Result<Said> {
        let mut part = Where::of(&["tokens"]);
        let mut filter = |name, value: Option<String>| {
            part.query.extend(value.map(|value| (name, value)));
        };
        let owner = match &args.owner {
            Some(owner) => Some(self.owner(owner, false, &mut String::new()).await?),
            None => None,
        };
        filter("owner", owner);
        filter("kind", args.kind.map(|kind| kind.as_str().to_owned()));
        filter("status", (!args.status.is_empty()).then(|| args.status.join(",")));
        filter("limit", Some(PARTS.to_owned()));
        let filters = part.query.len();
        let mut items = Vec::new();
        loop {
            let found = self.ask("GET", &part, None).await?;
            items.extend(found["items"].as_array().into_iter().flatten().cloned());
            let Some(next) = found["next"].as_str() else { break };
            part.query.truncate(filters);
            part.query.push(("cursor", next.to_owned()));
        }
        let result = if args.json { format!("{:#}\n", Value::from(items)) } else { table(&items) };
        Ok(Said { result, notes: String::new() })
    }

    async fn revoke(&self, token: &str) -> anyhow::Result<Said> {
        if token.starts_with(PREFIX) {
            let found = json!({ "token": token });
            self.ask("POST", &Where::of(&["tokens", "revoke"]), Some(found)).await?;
            return Ok(Said {
                result: "if there was such a token, it is revoked\n".to_owned(),
                ..Said::default()
            });
        }
        self.ask("DELETE", &Where::of(&["tokens", token]), None).await?;
        Ok(Said { result: format!("revoked {token}\n"), ..Said::default() })
    }

    async fn rotate(&self, args: &RotateArgs) -> anyhow::Result<Said> {
        let mut body = json!({});
        if let Some(overlap) = args.overlap {
            body["overlap_seconds"] = overlap.as_secs().into();
        }
        let made = self.ask("POST", &Where::of(&["tokens", &args.id, "rotate"]), Some(body)).await?;
        Ok(issued(&made, args.json, String::new()))
    }
}

/// A path below `/admin/v1`, and a query.
struct Where<'a> {
    path: Vec<&'a str>,
    query: Vec<(&'static str, String)>,
}

impl<'a> Where<'a> {
    fn of(path: &[&'a str]) -> Self {
        Self { path: path.to_vec(), query: Vec::new() }
    }

    fn under(&self, mut url: Url) -> Url {
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(["admin", "v1"]).extend(&self.path);
        }
        if !self.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&self.query);
        }
        url
    }
}

fn from_file(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("--admin-token-file {}", path.display()))
}

fn unique(list: Vec<String>) -> Value {
    list.into_iter().filter(|item| !item.is_empty()).collect::<BTreeSet<_>>().into_iter().collect()
}

fn id_of(user: &Value) -> anyhow::Result<String> {
    user["id"].as_str().map(str::to_owned).context("the admin API's answer has no id")
}

/// What went wrong and what to do about it.
fn explained(status: StatusCode, detail: Option<&str>) -> String {
    let detail =
        detail.unwrap_or("it does not say why; is --admin-url the operators' listener of a gateway?");
    match status {
        StatusCode::UNAUTHORIZED => {
            format!("the admin token is refused: it may have been revoked, or have expired ({detail})")
        }
        StatusCode::FORBIDDEN => format!("the admin token may not do this: {detail}"),
        _ => format!("the admin API answers {}: {detail}", status.as_u16()),
    }
}

/// The secret goes to standard output alone, so that a script can take it from there.
fn issued(made: &Value, json: bool, mut notes: String) -> Said {
    if json {
        return Said { result: format!("{made:#}\n"), notes };
    }
    let text = |member: &str| made[member].as_str().unwrap_or_default();
    let until = made["expires_at"].as_str().map_or("for ever".to_owned(), |end| format!("until {end}"));
    let _ = writeln!(
        notes,
        "made {} token {} ({}), good {until}; it is shown this once",
        text("kind"),
        text("id"),
        text("name")
    );
    Said { result: format!("{}\n", text("token")), notes }
}

fn table(items: &[Value]) -> String {
    let mut rows = vec![["ID", "KIND", "NAME", "OWNER", "STATUS", "EXPIRES", "LAST USED"].map(str::to_owned)];
    for item in items {
        let text = |member: &str| item[member].as_str().map(str::to_owned);
        let day = |member: &str| text(member).map(|time| time.chars().take(16).collect::<String>());
        rows.push([
            text("id").unwrap_or_default(),
            text("kind").unwrap_or_default(),
            text("name").unwrap_or_default(),
            text("owner").or_else(|| text("service")).unwrap_or_default(),
            text("status").unwrap_or_default(),
            day("expires_at").unwrap_or_else(|| "never".to_owned()),
            day("last_used_at").unwrap_or_else(|| "never".to_owned()),
        ]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..7).map(width).collect();
    rows.iter().fold(String::new(), |mut table, row| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        let _ = writeln!(table, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
        table
    })
}

#[cfg(test)]
mod tests {
    use drawbridge_auth::audit::{AuditFilter, AuditStore as _};

    use super::*;

    #[test]
    fn paths_are_below_the_url_and_ids_are_one_segment() {
        let under = |base: &str, path: &[&str]| Where::of(path).under(base.parse().unwrap()).to_string();
        assert_eq!(under("http://a:1", &["tokens"]), "http://a:1/admin/v1/tokens");
        assert_eq!(under("http://a/b/", &["tokens", "x"]), "http://a/b/admin/v1/tokens/x");
        assert_eq!(under("http://a", &["users", "a/../b?c"]), "http://a/admin/v1/users/a%2F..%2Fb%3Fc");
    }

    #[tokio::test]
    async fn the_database_itself_will_do() {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", dir.path().join("d.db").display());
        let run = async |line: &str| {
            use clap::Parser as _;
            let line = format!("drawbridge token --database {url} {line}");
            let cli = crate::cli::Cli::try_parse_from(line.split(' ')).unwrap();
            let crate::cli::Command::Token(args) = cli.command else { panic!("another command") };
            token(args, &HashMap::new()).await
        };
        let lacking = run("list").await.unwrap_err().to_string();
        assert!(lacking.contains("drawbridge migrate"), "{lacking}");
        let records = SqlRecords::open(&url, &SqlOptions::default()).unwrap();
        records.migrate().await.unwrap();

        let nobody = run("create --kind personal --owner alice --name laptop").await.unwrap_err();
        assert!(nobody.to_string().contains("--create-owner"), "{nobody}");
        let made = run("create --kind personal --owner alice --name laptop --create-owner").await.unwrap();
        let secret = made.result.trim();
        assert_eq!(drawbridge_auth::token::parse(secret), Some(drawbridge_auth::token::SecretKind::Personal));
        assert!(!made.notes.contains(secret) && made.notes.contains("laptop"));
        let again =
            run("create --kind personal --owner alice --name phone --create-owner --json").await.unwrap();
        let again: Value = serde_json::from_str(&again.result).unwrap();
        run("create --kind service --service ci --name ci --expires-in never").await.unwrap();
        let wrong = run("create --kind admin --name root").await.unwrap_err().to_string();
        assert!(wrong.contains("scopes"), "{wrong}");

        let listed = run("list --owner alice --status active").await.unwrap().result;
        assert_eq!(listed.lines().count(), 3, "{listed}");
        let id = again["id"].as_str().unwrap();
        run(&format!("rotate {id} --overlap 1m")).await.unwrap();
        assert!(run(&format!("rotate {id}")).await.unwrap_err().to_string().contains("409"));
        run(&format!("revoke {id}")).await.unwrap();
        run(&format!("revoke {secret}")).await.unwrap();
        assert!(run("revoke nothing").await.unwrap_err().to_string().contains("no token"));
        let listed = run("list --status active --json").await.unwrap().result;
        let listed: Vec<Value> = serde_json::from_str(&listed).unwrap();
        assert_eq!(listed.len(), 2, "{listed:?}");

        let audit = records.audit(&AuditFilter::default(), None, 100).await.unwrap().items;
        assert!(audit.len() >= 7 && audit.iter().all(|entry| entry.actor == ACTOR));
    }

    #[tokio::test]
    async fn what_is_missing_is_said() {
        use clap::Parser as _;
        let line = ["drawbridge", "token", "list", "--admin-url", "http://127.0.0.1:1"];
        let parse = || match crate::cli::Cli::try_parse_from(line).unwrap().command {
            crate::cli::Command::Token(args) => args,
            _ => panic!("another command"),
        };
        let none = token(parse(), &HashMap::new()).await.unwrap_err().to_string();
        assert!(none.contains("DRAWBRIDGE_ADMIN_TOKEN"), "{none}");
        let env = HashMap::from([("DRAWBRIDGE_ADMIN_TOKEN".to_owned(), "drb_adm_x".to_owned())]);
        let away = token(parse(), &env).await.unwrap_err().to_string();
        assert!(away.contains("--admin-url") && !away.contains("drb_adm_x"), "{away}");
    }
}

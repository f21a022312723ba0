//! The configuration: one YAML (or JSON) file, an optional list of MCP servers as hosts keep it, and a few
//! flags.
//!
//! Layers, each over the one before: defaults, file, `DRAWBRIDGE_*` environment, flags. The last two arrive
//! together as [`Overrides`], since the command line reads both. Nothing here reads the environment of the
//! process: it is passed in, so that two gateways in one process may differ.
//!
//! The way of a file: `parse` reads it into the types of `raw`, which are also the published JSON Schema,
//! and leaves out what is at fault in its form; `check` makes the plain types of `model` of the rest. Both report
//! every fault at once, at the line of its key. Start reading at [`load`].

mod check;
mod jsonc;
mod mcp_json;
mod model;
mod parse;
mod position;
mod problem;
mod raw;
pub mod schema;
mod secret;
mod shown;
#[cfg(test)]
mod tests;
mod value;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;

pub use self::model::{
    Admin, Audit, Auth, Backend, BackendAuth, BackendKind, ClientCertificate, ClientCredentials, ClientProof,
    Config, Drain, Endpoint, External, HttpBackend, IdJag, Limits, Log, Login, NamedClient, Otlp, Outbound,
    Password, Proxy, Public, Rate, Redis, StdioBackend, Streams, TokenExchange, TokenSource, ToolRate,
    UserOAuth, UserSecret,
};
pub use self::problem::{Notice, Problem, Problems};
pub use self::raw::{
    AuthMode, ClientAuth, ClientGrant, Era, LogFormat, OtlpProtocol, RegistrationPolicy, SessionScope,
    StepUp, SubjectToken, Transport,
};
pub use self::secret::{SealKey, Secret};
pub use self::shown::{Source as ValueSource, Written};

use sha2::{Digest as _, Sha256};

use self::check::Checker;
use self::parse::{MAX_FILE_BYTES, Parsed};
use self::position::Positions;
use self::value::SecretSource;

/// Everything a configuration is made of.
#[derive(Clone, Default)]
pub struct Inputs {
    /// The configuration file; without one the defaults apply.
    pub config: Option<PathBuf>,
    /// A list of MCP servers as hosts keep it.
    pub mcp_servers: Option<PathBuf>,
    /// The environment for `${NAME}`, `{ env: NAME }` and the proxy variables.
    pub env: HashMap<String, String>,
    /// Values that win over the file.
    pub overrides: Overrides,
}

impl fmt::Debug for Inputs {
    /// Leaves the environment out, since it holds secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inputs")
            .field("config", &self.config)
            .field("mcp_servers", &self.mcp_servers)
            .field("overrides", &self.overrides)
            .finish_non_exhaustive()
    }
}

/// Values given as a flag or as a `DRAWBRIDGE_*` variable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// `--listen`
    pub listen: Option<SocketAddr>,
    /// `--admin-listen`
    pub admin_listen: Option<SocketAddr>,
    /// `--public-url`
    pub public_url: Option<String>,
    /// `--redis`
    pub redis: Option<Secret>,
    /// `--database`
    pub database: Option<Secret>,
    /// `--auth`
    pub auth: Option<AuthMode>,
    /// `--instance-id`
    pub instance_id: Option<String>,
}

/// A checked configuration and what the operator should know about it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// What was changed or ignored on the way.
    pub notices: Vec<Notice>,
    /// The files that it was read from.
    pub files: Vec<FileRead>,
    /// Which keys are written, and where.
    pub written: Written,
}

/// A file that a configuration was read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRead {
    /// Its name, as the operator gave it.
    pub path: String,
    /// The SHA-256 of what was in it.
    pub sha256: [u8; 32],
}

impl FileRead {
    fn of(source: &Source) -> Self {
        Self { path: source.name.clone(), sha256: Sha256::digest(&source.bytes).into() }
    }
}

/// A file that was read: the name the operator gave it and its bytes.
struct Source {
    name: String,
    bytes: Vec<u8>,
}

/// Reads and checks a configuration.
///
/// # Errors
///
/// Everything that is wrong with it, each with file, line, column and a hint. A file whose text is broken, so that
/// nothing can be said about the rest, has one fault.
pub fn load(inputs: &Inputs) -> Result<Loaded, Problems> {
    let config = inputs.config.as_deref().map(read).transpose()?;
    let mcp_servers = inputs.mcp_servers.as_deref().map(read).transpose()?;
    let files = config.iter().chain(&mcp_servers).map(FileRead::of).collect();
    let loaded = assemble(config, mcp_servers, &inputs.env, &inputs.overrides)?;
    Ok(Loaded { files, ..loaded })
}

/// What is in the files of a configuration now; nothing about one that can't be read.
pub fn look(inputs: &Inputs) -> Vec<Option<FileRead>> {
    let files = inputs.config.iter().chain(&inputs.mcp_servers);
    files.map(|path| read(path).ok().map(|source| FileRead::of(&source))).collect()
}

fn read(path: &Path) -> Result<Source, Problem> {
    let name = path.display().to_string();
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path);
    match file.and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)) {
        Ok(_) => Ok(Source { name, bytes }),
        Err(error) => Err(Problem {
            file: name,
            line: 0,
            column: 0,
            path: String::new(),
            message: format!("can't read the file: {error}"),
            hint: Some("check the path and who may read it".to_owned()),
        }),
    }
}

fn assemble(
    config: Option<Source>,
    mcp_servers: Option<Source>,
    env: &HashMap<String, String>,
    overrides: &Overrides,
) -> Result<Loaded, Problems> {
    let source = config.unwrap_or_else(|| Source { name: "configuration".to_owned(), bytes: Vec::new() });
    let shared_env = Rc::new(env.clone());
    let Parsed { mut file, positions, faults, left_out } =
        parse::parse(&source.name, &source.bytes, &shared_env)?;
    let flags = overrides.apply(&mut file);
    let mut checker = Checker::new(&source.name, &positions, &flags, env);
    checker.add_faults_of_form(faults, left_out);
    let mut known: BTreeSet<String> = positions.names("backends").map(str::to_owned).collect();
    let (mut config, endpoints) = check::file(&mut checker, file);
    let mut imported_problems = Vec::new();
    let mut imported_notices = Vec::new();
    let mut listed: Vec<String> = Vec::new();
    if let Some(mcp) = mcp_servers {
        match mcp_json::import(&mcp.name, &mcp.bytes, env) {
            Err(Problems(problems)) => imported_problems = problems,
            Ok(imported) => {
                imported_notices = imported.notices;
                imported_problems = imported.problems;
                let twice = equal_names(&mcp.name, &imported.paths, &imported.positions, &known);
                imported_problems.extend(twice);
                listed = imported.paths.keys().cloned().collect();
                known.extend(imported.paths.into_keys());
                config.backends.extend(imported.backends);
            }
        }
    }
    check::endpoints(&mut checker, &mut config, &known, endpoints);
    let written = Written::new(&positions, overrides.sources(env), listed);
    let (mut problems, mut notices) = checker.finish();
    problems.extend(imported_problems);
    notices.extend(imported_notices);
    if problems.is_empty() {
        Ok(Loaded { config, notices, files: Vec::new(), written })
    } else {
        Err(Problems(problems))
    }
}

/// A problem for each imported server that the configuration file declares too.
fn equal_names(
    file: &str,
    imported: &BTreeMap<String, String>,
    positions: &Positions,
    known: &BTreeSet<String>,
) -> Vec<Problem> {
    let twice = imported.iter().filter(|(name, _)| known.contains(*name));
    let problem = |(name, path): (&String, &String)| {
        let position = positions.of(path);
        Problem {
            file: file.to_owned(),
            line: position.line,
            column: position.column,
            path: path.clone(),
            message: format!("the configuration file has a backend `{name}` too"),
            hint: Some("rename or remove one of them".to_owned()),
        }
    };
    twice.map(problem).collect()
}

impl Overrides {
    /// Puts the values over those of the file; returns the flag behind each key that was set.
    fn apply(&self, file: &mut raw::File) -> BTreeMap<&'static str, &'static str> {
        let mut flags = BTreeMap::new();
        if let Some(listen) = self.listen {
            file.public.get_or_insert_default().listen = Some(listen);
            flags.insert("public.listen", "--listen (DRAWBRIDGE_LISTEN)");
        }
        if let Some(listen) = self.admin_listen {
            file.admin.get_or_insert_default().listen = Some(listen);
            flags.insert("admin.listen", "--admin-listen (DRAWBRIDGE_ADMIN_LISTEN)");
        }
        if let Some(url) = &self.public_url {
            file.public.get_or_insert_default().url = Some(url.clone());
            flags.insert("public.url", "--public-url (DRAWBRIDGE_PUBLIC_URL)");
        }
        if let Some(url) = &self.redis {
            file.redis.get_or_insert_default().url = Some(literal(url));
            flags.insert("redis.url", "--redis (DRAWBRIDGE_REDIS)");
        }
        if let Some(url) = &self.database {
            file.database = Some(raw::Database { url: literal(url) });
            flags.insert("database.url", "--database (DRAWBRIDGE_DATABASE)");
        }
        if let Some(mode) = self.auth {
            file.auth.get_or_insert_default().mode = Some(mode);
            flags.insert("auth.mode", "--auth (DRAWBRIDGE_AUTH)");
        }
        if let Some(id) = &self.instance_id {
            file.instance_id = Some(id.clone());
            flags.insert("instance_id", "--instance-id (DRAWBRIDGE_INSTANCE_ID)");
        }
        flags
    }
}

fn literal(secret: &Secret) -> SecretSource {
    SecretSource::Literal(secret.expose().to_owned())
}

//! The command line: what `drawbridge` accepts. Names here are a contract; add to them, don't rename.

use std::collections::HashMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use clap::{Args, Parser, Subcommand, ValueEnum};
use url::Url;

use crate::config::{AuthMode, Inputs, Overrides, Secret};

/// A gateway for the Model Context Protocol: one URL in front of many MCP servers.
#[derive(Debug, Parser)]
#[command(name = "drawbridge", version, propagate_version = true, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start with the built-in demo backend, without any configuration, and print how to connect.
    Quickstart(QuickstartArgs),
    /// Run the gateway.
    Serve(ServeArgs),
    /// Validate a configuration; exits with 0, or with 2 and what to change where.
    Check(CheckArgs),
    /// Bring the database up to date.
    Migrate(MigrateArgs),
    /// Make, list, revoke and rotate tokens, through the admin API of a gateway or in the database itself.
    Token(TokenArgs),
    /// Check the audit trail, or write it out.
    Audit(AuditArgs),
    /// Run the demo backend alone: an MCP server that shows every feature.
    DemoServer(DemoServerArgs),
    /// Run a command and end all its descendants when standard input closes.
    #[command(hide = true)]
    Guard(GuardArgs),
}

/// Arguments of `quickstart`.
#[derive(Debug, Args)]
pub struct QuickstartArgs {
    /// Address for MCP clients; port 0 takes a free one [default: 127.0.0.1:8080].
    #[arg(long, value_name = "ADDRESS", env = "DRAWBRIDGE_LISTEN")]
    pub listen: Option<SocketAddr>,
    /// Address for operators; port 0 takes a free one [default: 127.0.0.1:9090].
    #[arg(long, value_name = "ADDRESS", env = "DRAWBRIDGE_ADMIN_LISTEN")]
    pub admin_listen: Option<SocketAddr>,
}

/// Arguments of `serve`. Each wins over its environment variable, and that over the file.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// The configuration file.
    #[arg(long, value_name = "FILE", env = "DRAWBRIDGE_CONFIG")]
    pub config: Option<PathBuf>,
    /// A list of MCP servers as hosts keep it: mcp.json, claude_desktop_config.json, ...
    #[arg(long, value_name = "FILE", env = "DRAWBRIDGE_MCP_SERVERS")]
    pub mcp_servers: Option<PathBuf>,
    /// Address for MCP clients; port 0 takes a free one [default: 127.0.0.1:8080].
    #[arg(long, value_name = "ADDRESS", env = "DRAWBRIDGE_LISTEN")]
    pub listen: Option<SocketAddr>,
    /// Address for operators; port 0 takes a free one [default: 127.0.0.1:9090].
    #[arg(long, value_name = "ADDRESS", env = "DRAWBRIDGE_ADMIN_LISTEN")]
    pub admin_listen: Option<SocketAddr>,
    /// The URL under which clients reach the gateway.
    #[arg(long, value_name = "URL", env = "DRAWBRIDGE_PUBLIC_URL")]
    pub public_url: Option<String>,
    /// Redis for shared state: redis://, redis+sentinel:// or redis+cluster://, with rediss over TLS.
    #[arg(long, value_name = "URL", env = "DRAWBRIDGE_REDIS", hide_env_values = true, value_parser = secret)]
    pub redis: Option<Secret>,
    /// Database for durable records: postgres://USER:PASSWORD@HOST/NAME or sqlite:FILE.
    #[arg(long, value_name = "URL", env = "DRAWBRIDGE_DATABASE", hide_env_values = true, value_parser = secret)]
    pub database: Option<Secret>,
    /// How callers prove who they are.
    #[arg(long, value_name = "MODE", env = "DRAWBRIDGE_AUTH")]
    pub auth: Option<AuthMode>,
    /// Name of this instance in the log.
    #[arg(long, value_name = "NAME", env = "DRAWBRIDGE_INSTANCE_ID")]
    pub instance_id: Option<String>,
}

impl ServeArgs {
    /// What to load: the files and overrides named here, in the environment `env`.
    pub fn inputs(self, env: HashMap<String, String>) -> Inputs {
        let overrides = Overrides {
            listen: self.listen,
            admin_listen: self.admin_listen,
            public_url: self.public_url,
            redis: self.redis,
            database: self.database,
            auth: self.auth,
            instance_id: self.instance_id,
        };
        Inputs { config: self.config, mcp_servers: self.mcp_servers, env, overrides }
    }
}

/// Arguments of `check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The configuration file.
    #[arg(long, value_name = "FILE", env = "DRAWBRIDGE_CONFIG", required_unless_present = "mcp_servers")]
    pub config: Option<PathBuf>,
    /// A list of MCP servers as hosts keep it.
    #[arg(long, value_name = "FILE", env = "DRAWBRIDGE_MCP_SERVERS")]
    pub mcp_servers: Option<PathBuf>,
}

impl CheckArgs {
    /// What to load: the files named here alone, in the environment `env`.
    pub fn inputs(self, env: HashMap<String, String>) -> Inputs {
        Inputs { config: self.config, mcp_servers: self.mcp_servers, env, overrides: Overrides::default() }
    }
}

/// Arguments of `migrate`.
#[derive(Debug, Args)]
pub struct MigrateArgs {
    /// The configuration file that names the database.
    #[arg(long, value_name = "FILE", env = "DRAWBRIDGE_CONFIG")]
    pub config: Option<PathBuf>,
    /// The database itself: postgres://USER:PASSWORD@HOST/NAME or sqlite:FILE.
    #[arg(long, value_name = "URL", env = "DRAWBRIDGE_DATABASE", hide_env_values = true, value_parser = secret)]
    pub database: Option<Secret>,
    /// Change nothing: exit with 1 and name what is missing, or exit with 0.
    #[arg(long)]
    pub check: bool,
}

impl MigrateArgs {
    /// What to load, in the environment `env`.
    pub fn inputs(self, env: HashMap<String, String>) -> Inputs {
        let overrides = Overrides { database: self.database, ..Overrides::default() };
        Inputs { config: self.config, mcp_servers: None, env, overrides }
    }
}

/// Arguments of `token`.
#[derive(Debug, Args)]
pub struct TokenArgs {
    /// Where tokens are.
    #[command(flatten)]
    pub at: AdminArgs,
    /// What to do.
    #[command(subcommand)]
    pub command: TokenCommand,
}

/// Where the admin API is.
#[derive(Debug, Args)]
pub struct AdminArgs {
    /// The operators' listener of a gateway. The token that it takes is in the variable `DRAWBRIDGE_ADMIN_TOKEN`, or in a
    /// file.
    #[arg(
        long,
        value_name = "URL",
        env = "DRAWBRIDGE_ADMIN_URL",
        default_value = "http://127.0.0.1:9090",
        global = true
    )]
    pub admin_url: Url,
    /// A file with an admin token.
    #[arg(long, value_name = "FILE", env = "DRAWBRIDGE_ADMIN_TOKEN_FILE", global = true)]
    pub admin_token_file: Option<PathBuf>,
    /// Work on the database itself, where no gateway can be reached: postgres://USER:PASSWORD@HOST/NAME or sqlite:FILE.
    #[arg(long, value_name = "URL", value_parser = secret, global = true)]
    pub database: Option<Secret>,
}

/// What can be done with tokens.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a token, and print its secret this once.
    Create(CreateArgs),
    /// List tokens, without their secrets.
    List(ListArgs),
    /// Revoke a token: all instances refuse it within a second.
    Revoke(RevokeArgs),
    /// Replace a token by one that may the same, and print the new one's secret this once.
    Rotate(RotateArgs),
}

/// What a token is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Acts as a user at MCP endpoints.
    Personal,
    /// Acts as a service at MCP endpoints.
    Service,
    /// For the admin API alone.
    Admin,
}

impl Kind {
    /// As the admin API names it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Personal => "personal",
            Self::Service => "service",
            Self::Admin => "admin",
        }
    }
}

/// Arguments of `token create`.
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// What it is to be good for.
    #[arg(long, value_enum)]
    pub kind: Kind,
    /// What people call it.
    #[arg(long)]
    pub name: String,
    /// The user whom a personal token acts as: an id, or the subject of a user that was made here.
    #[arg(long, value_name = "SUBJECT|ID")]
    pub owner: Option<String>,
    /// Make the user if there is none.
    #[arg(long, requires = "owner")]
    pub create_owner: bool,
    /// The service that a service token acts as.
    #[arg(long, value_name = "NAME")]
    pub service: Option<String>,
    /// What it may do [default: mcp:read,mcp:write; an admin token needs some of admin:read, admin:tokens, admin:*].
    #[arg(long, value_delimiter = ',')]
    pub scopes: Vec<String>,
    /// At which endpoints; * for all [default: the default endpoint].
    #[arg(long, value_delimiter = ',')]
    pub endpoints: Vec<String>,
    /// From which networks, such as 192.0.2.0/24 [default: all].
    #[arg(long, value_delimiter = ',')]
    pub networks: Vec<String>,
    /// The groups of a service.
    #[arg(long, value_delimiter = ',')]
    pub groups: Vec<String>,
    /// For how long, such as 30d; a service token can be good for ever: never [default: 90d].
    #[arg(long, value_name = "TIME")]
    pub expires_in: Option<String>,
    /// Print all about it as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `token list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Only those of this user: an id, or a subject.
    #[arg(long, value_name = "SUBJECT|ID")]
    pub owner: Option<String>,
    /// Only those of this kind.
    #[arg(long, value_enum)]
    pub kind: Option<Kind>,
    /// Only those that are in one of these states: active, expired, revoked.
    #[arg(long, value_delimiter = ',', value_parser = ["active", "expired", "revoked"])]
    pub status: Vec<String>,
    /// Print all about them as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `token revoke`.
#[derive(Debug, Args)]
pub struct RevokeArgs {
    /// The token's id, or its secret.
    #[arg(value_name = "ID|SECRET")]
    pub token: String,
}

/// Arguments of `token rotate`.
#[derive(Debug, Args)]
pub struct RotateArgs {
    /// The token's id.
    #[arg(value_name = "ID")]
    pub id: String,
    /// For how long the old one is good beside the new one [default: 1h].
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub overlap: Option<Duration>,
    /// Print all about the new one as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `audit`.
#[derive(Debug, Args)]
pub struct AuditArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: AuditCommand,
}

/// What can be done with the audit trail.
#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// Go through the trail; exit with 0 if it is what was written, or with 1 and say what is not, and where.
    Verify(VerifyArgs),
    /// Write entries to standard output, one JSON object a line, the oldest first.
    Export(ExportArgs),
}

/// Where the audit trail is.
#[derive(Debug, Args)]
pub struct AuditPlace {
    /// The configuration file that names the database and has the seal keys.
    #[arg(long, value_name = "FILE", env = "DRAWBRIDGE_CONFIG")]
    pub config: Option<PathBuf>,
    /// The database itself: postgres://USER:PASSWORD@HOST/NAME or sqlite:FILE.
    #[arg(long, value_name = "URL", env = "DRAWBRIDGE_DATABASE", hide_env_values = true, value_parser = secret)]
    pub database: Option<Secret>,
}

/// Arguments of `audit verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Where it is.
    #[command(flatten)]
    pub place: AuditPlace,
    /// Go through this chain alone.
    #[arg(long)]
    pub chain: Option<String>,
    /// Believe this key, by its thumbprint; for keys whose seal key is no longer in the configuration, or where there is
    /// no configuration. Can be given several times.
    #[arg(long, value_name = "THUMBPRINT")]
    pub trust: Vec<String>,
    /// An earlier export: the trail must have what is in it, or say that it was too old.
    #[arg(long, value_name = "FILE")]
    pub kept: Option<PathBuf>,
}

/// Arguments of `audit export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// Where it is.
    #[command(flatten)]
    pub place: AuditPlace,
    /// Only this chain.
    #[arg(long)]
    pub chain: Option<String>,
    /// Only from this time on: 2026-11-30T12:00:00Z, or so long ago: 24h.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub since: Option<DateTime<Utc>>,
    /// Only from before this time.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub until: Option<DateTime<Utc>>,
    /// Only what administrators and the gateway did, or only calls.
    #[arg(long, value_enum)]
    pub kind: Option<EntryKind>,
}

/// What entries are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EntryKind {
    /// What administrators and the gateway did.
    Action,
    /// Calls.
    Call,
}

/// Arguments of `demo-server`.
#[derive(Debug, Args)]
pub struct DemoServerArgs {
    /// Speak over standard input and output.
    #[arg(long, conflicts_with = "listen")]
    pub stdio: bool,
    /// Speak HTTP on this address; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS", required_unless_present = "stdio")]
    pub listen: Option<SocketAddr>,
}

/// Arguments of `guard`.
#[derive(Debug, Args)]
pub struct GuardArgs {
    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// A time, or how long ago it was.
fn moment(text: &str) -> Result<DateTime<Utc>, String> {
    if let Ok(at) = DateTime::parse_from_rfc3339(text) {
        return Ok(at.to_utc());
    }
    let ago = humantime::parse_duration(text).ok().and_then(|ago| TimeDelta::from_std(ago).ok());
    let at = ago.and_then(|ago| Utc::now().checked_sub_signed(ago));
    at.ok_or_else(|| "write a time such as 2026-11-30T12:00:00Z, or how long ago: 24h".to_owned())
}

fn secret(text: &str) -> Result<Secret, std::convert::Infallible> {
    Ok(Secret::new(text))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use clap::{CommandFactory, Parser};

    use super::{Cli, Command};
    use crate::config::AuthMode;

    fn parse(line: &str) -> Result<Command, clap::Error> {
        Cli::try_parse_from(line.split(' ')).map(|cli| cli.command)
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn serve_takes_every_flag_of_the_contract() {
        let line = "drawbridge serve --config c.yaml --mcp-servers mcp.json --listen 127.0.0.1:0 \
                    --admin-listen 127.0.0.1:1 --public-url https://a.example --redis redis://:hunter2@a \
                    --database postgres://a --auth tokens --instance-id one";
        let Ok(Command::Serve(serve)) = parse(line) else { panic!("refused") };
        assert!(!format!("{serve:?}").contains("hunter2"));
        let inputs = serve.inputs(HashMap::new());
        assert_eq!(inputs.config, Some("c.yaml".into()));
        assert_eq!(inputs.mcp_servers, Some("mcp.json".into()));
        assert_eq!(inputs.overrides.listen, Some("127.0.0.1:0".parse().unwrap()));
        assert_eq!(inputs.overrides.auth, Some(AuthMode::Tokens));
        assert_eq!(inputs.overrides.redis.unwrap().expose(), "redis://:hunter2@a");
    }

    #[test]
    fn every_flag_of_serve_has_a_variable() {
        let command = Cli::command();
        let serve = command.find_subcommand("serve").unwrap();
        for argument in serve.get_arguments() {
            let flag = argument.get_long().unwrap();
            let variable = format!("DRAWBRIDGE_{}", flag.replace('-', "_").to_uppercase());
            assert_eq!(argument.get_env().and_then(|env| env.to_str()), Some(variable.as_str()), "--{flag}");
        }
    }

    #[test]
    fn tokens_are_managed_here_or_there() {
        let line = "drawbridge token create --kind personal --owner alice --name laptop --scopes mcp:read,mcp:write \
                    --endpoints a,b --networks 10.0.0.0/8 --expires-in 90d --admin-url http://127.0.0.1:9090";
        assert!(matches!(parse(line), Ok(Command::Token(_))));
        let line = "drawbridge token rotate --database postgres://a:hunter2@b x --overlap 1h";
        let Ok(token) = parse(line) else { panic!("refused") };
        assert!(!format!("{token:?}").contains("hunter2"));
        assert!(parse("drawbridge token list --status dead").is_err());
        assert!(parse("drawbridge token revoke").is_err());
        assert!(matches!(
            parse("drawbridge migrate --check --database sqlite:a.db"),
            Ok(Command::Migrate(_))
        ));
    }

    #[test]
    fn the_audit_trail_is_named_by_file_or_database() {
        let line = "drawbridge audit verify --config c.yaml --chain x --trust a --trust b --kept old.jsonl";
        assert!(matches!(parse(line), Ok(Command::Audit(_))));
        let line = "drawbridge audit export --database postgres://a:hunter2@b --since 24h --until 2026-11-30T12:00:00Z";
        let Ok(export) = parse(line) else { panic!("refused") };
        assert!(!format!("{export:?}").contains("hunter2"));
        assert!(parse("drawbridge audit export --since yesterday").is_err());
        assert!(parse("drawbridge audit").is_err());
    }

    #[test]
    fn guard_passes_everything_on() {
        let Ok(Command::Guard(guard)) = parse("drawbridge guard -- npx -y --help -- x") else {
            panic!("refused")
        };
        assert_eq!(guard.command, ["npx", "-y", "--help", "--", "x"]);
        assert!(parse("drawbridge guard").is_err());
    }

    #[test]
    fn what_can_not_be_meant_is_refused() {
        assert!(parse("drawbridge demo-server").is_err());
        assert!(parse("drawbridge demo-server --stdio --listen 127.0.0.1:0").is_err());
        assert!(parse("drawbridge check").is_err());
        assert!(parse("drawbridge check --mcp-servers mcp.json").is_ok());
        assert!(parse("drawbridge quickstart").is_ok());
    }
}

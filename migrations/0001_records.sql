-- One text for SQLite and PostgreSQL. Ids, sets (JSON arrays) and JSON are text; hashes and sealed bytes are text in
-- hexadecimal form; times are microseconds since 1970.

create table users (
    id text not null primary key,
    issuer text not null,
    subject text not null,
    email text,
    name text,
    groups text not null,
    version bigint not null,
    created_at bigint not null,
    claims_at bigint,
    disabled_at bigint,
    unique (issuer, subject)
);

create table tokens (
    id text not null primary key,
    hash text not null unique,
    kind text not null,
    name text not null,
    owner text references users (id),
    service text,
    hint text not null,
    scopes text not null,
    endpoints text not null,
    networks text not null,
    groups text not null,
    chain text not null,
    version bigint not null,
    created_by text not null,
    created_at bigint not null,
    expires_at bigint,
    last_used_at bigint,
    last_used_from text,
    revoked_at bigint,
    revoked_by text,
    rotated_to text
);
create index tokens_owner on tokens (owner, id);
create index tokens_kind on tokens (kind, id);

create table oauth_clients (
    id text not null primary key,
    metadata text not null,
    digest text not null,
    secret_hash text,
    created_at bigint not null,
    last_used_at bigint,
    disabled_at bigint
);
create unique index oauth_clients_digest on oauth_clients (digest) where secret_hash is null;
create index oauth_clients_unused on oauth_clients (created_at) where last_used_at is null;

-- The client need not be here: its metadata may be elsewhere, and a grant is kept for a while after its client.
create table grants (
    id text not null primary key,
    user_id text not null references users (id),
    client_id text not null,
    client_name text,
    resource text not null,
    scopes text not null,
    auth_time bigint not null,
    created_at bigint not null,
    last_used_at bigint not null,
    expires_at bigint not null,
    revoked_at bigint,
    revoke_reason text
);
create index grants_user on grants (user_id, id);
create index grants_client on grants (client_id, id);
create index grants_expires_at on grants (expires_at);
create index grants_revoked_at on grants (revoked_at);

-- A token that was used has the id of its successor, and what that came with.
create table refresh_tokens (
    id text not null primary key,
    grant_id text not null references grants (id) on delete cascade,
    hash text not null unique,
    parent text,
    expires_at bigint not null,
    consumed_at bigint,
    successor text,
    replay text,
    seen_at bigint
);
create index refresh_tokens_grant on refresh_tokens (grant_id);
create index refresh_tokens_expires_at on refresh_tokens (expires_at);

create table signing_keys (
    kid text not null primary key,
    algorithm text not null,
    private_key text not null,
    public_key text not null,
    not_before bigint not null,
    retires_at bigint not null
);

create table revocations (
    revoked text not null primary key,
    ends_at bigint not null,
    entered_at bigint not null
);
create index revocations_entered_at on revocations (entered_at);
create index revocations_ends_at on revocations (ends_at);

create table audit (
    chain text not null,
    number bigint not null,
    at bigint not null,
    actor text not null,
    action text not null,
    target text not null,
    outcome text not null,
    detail text not null,
    hash text not null,
    primary key (chain, number)
);
create index audit_at on audit (at, chain, number);

-- What users have at other servers. Tokens and secrets are sealed: `key-id.text`, each for its row and column alone.

create table authorities (
    backend text not null primary key,
    issuer text not null,
    resource text not null,
    metadata text not null,
    found text,
    client_id text,
    client_secret text,
    pinned_at bigint not null
);

-- Whoever renews a connection takes its turn (`turn_by`, `turn_until`); the version is what decides in the end.
create table connections (
    id text not null primary key,
    user_id text not null references users (id),
    backend text not null,
    issuer text not null,
    resource text not null,
    client_id text not null,
    scopes text not null,
    wanted text not null,
    access text not null,
    refresh text,
    id_token text,
    expires_at bigint,
    status text not null,
    version bigint not null,
    last_error text,
    created_at bigint not null,
    updated_at bigint not null,
    turn_by text,
    turn_until bigint,
    unique (user_id, backend)
);

-- Signed checkpoints of the audit trail, and the keys that sign them. A chain has few: one in a minute in which it grew,
-- and none but the last once its entries are too old.

create table audit_checkpoints (
    chain text not null,
    number bigint not null,
    kind text not null,
    at bigint not null,
    hash text not null,
    statement text not null,
    primary key (chain, number, kind)
);
create index audit_checkpoints_at on audit_checkpoints (at);
create index audit_checkpoints_cut on audit_checkpoints (chain, number) where kind = 'cut';

create table audit_keys (
    kid text not null primary key,
    private_key text not null,
    public_key text not null,
    created_at bigint not null
);

-- What administrators did is looked for among very many calls.
create index audit_actions on audit (at, chain, number) where substr(action, 1, 4) <> 'mcp:';

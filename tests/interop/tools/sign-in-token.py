#!/usr/bin/env python3
"""Makes a user of the gateway and a token to sign in with, straight in its SQLite file. Standard library only.

sign-in-token.py FILE [--user NAME] [--scopes 'login']
Prints the secret. The form of the secret and the tables are those of crates/auth/src/token.rs and migrations/.
"""
import argparse, hashlib, json, secrets, sqlite3, string, time, zlib

ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase


def secret(kind="pat"):
    text = f"drb_{kind}_" + "".join(secrets.choice(ALPHABET) for _ in range(34))
    left, digits = zlib.crc32(text.encode()), ""
    for _ in range(6): left, digit = divmod(left, 62); digits = ALPHABET[digit] + digits
    return text + digits


def main():
    a = argparse.ArgumentParser()
    a.add_argument("file"); a.add_argument("--user", default="alice"); a.add_argument("--scopes", default="login")
    o = a.parse_args()
    now, fresh = int(time.time() * 1e6), lambda: secrets.token_urlsafe(16)
    db = sqlite3.connect(f"file:{o.file}?mode=rw", uri=True, timeout=10)
    with db:
        db.execute("insert into users (id, issuer, subject, name, groups, version, created_at) values (?, 'local', ?, ?, '[]', 1, ?) on conflict do nothing", (fresh(), o.user, o.user.capitalize(), now))
        (owner,) = db.execute("select id from users where issuer = 'local' and subject = ?", (o.user,)).fetchone()
        made, id = secret(), fresh()
        row = dict(id=id, hash=hashlib.sha256(made.encode()).hexdigest(), kind="personal", name="of a test", owner=owner, hint=made[-4:], scopes=json.dumps(o.scopes.split()),
                   endpoints="[]", networks="[]", groups="[]", chain=id, version=1, created_by="a test", created_at=now, expires_at=now + 86_400_000_000)
        db.execute(f"insert into tokens ({', '.join(row)}) values ({', '.join('?' * len(row))})", tuple(row.values()))
    print(made)


main()

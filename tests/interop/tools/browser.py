#!/usr/bin/env python3
"""The person at the browser: opens an authorization URL, signs in, consents, and is sent to the client. Standard library only.

browser.py --token SECRET [--decision allow] [--only SCOPE] [--language de] [--log FILE] [--stop-at TEXT] URL
It keeps cookies, follows redirects, and fills in the forms that it finds: one with a field `token`, one with buttons
`decision`. It ends where a page has neither: code 0 if that was answered with success, else 1. Every step goes to FILE.
--stop-at prints the first address that has TEXT in it, and does not go there. --jar FILE keeps the cookies between runs.
"""
import argparse, html.parser, http.client, json, os, sys, time, urllib.parse

a = argparse.ArgumentParser()
a.add_argument("--token", default=os.environ.get("SIGN_IN_TOKEN", "")); a.add_argument("--decision", default="allow"); a.add_argument("--only")
a.add_argument("--language", default="en"); a.add_argument("--log"); a.add_argument("--stop-at"); a.add_argument("--jar"); a.add_argument("url", nargs="+")
o = a.parse_args()
jar = json.load(open(o.jar)) if o.jar and os.path.exists(o.jar) else {}


class Forms(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__(); self.action, self.fields, self.text = None, [], ""
        self.feed(text)
    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag == "form" and not any(f["name"] in ("token", "decision") for _, f in self.fields): self.action, self.fields = attrs.get("action", ""), []
        if self.action is not None and tag in ("input", "button") and "name" in attrs and "form" not in attrs: self.fields.append((tag, attrs))
    def handle_data(self, data): self.text += data


def step(method, url, form=None):
    at = urllib.parse.urlsplit(url)
    host = jar.setdefault(at.hostname, {})                   # cookies know no ports
    headers = {"accept": "text/html", "accept-language": o.language, "user-agent": "Mozilla/5.0 browser.py"}
    if host: headers["cookie"] = "; ".join(f"{k}={v}" for k, v in host.items())
    if form is not None: headers |= {"content-type": "application/x-www-form-urlencoded", "origin": f"{at.scheme}://{at.netloc}", "sec-fetch-site": "same-origin"}
    for tries in range(40):                                  # a client may open the browser before it listens
        try:
            c = (http.client.HTTPSConnection if at.scheme == "https" else http.client.HTTPConnection)(at.hostname, at.port, timeout=30)
            c.request(method, at.path + ("?" + at.query if at.query else "") or "/", urllib.parse.urlencode(form) if form is not None else None, headers)
            r = c.getresponse(); text = r.read().decode("utf-8", "replace")
            break
        except ConnectionRefusedError:
            if tries == 39: sys.exit(f"nobody listens at {at.netloc}")
            time.sleep(.25)
    for cookie in r.headers.get_all("set-cookie") or []:
        name, _, value = cookie.split(";")[0].partition("=")
        if value and "max-age=0" not in cookie.lower(): host[name] = value
        else: host.pop(name, None)
    to = r.headers.get("location")
    if o.log: open(o.log, "a").write(f"{r.status} {method} {url}{' -> ' + to if to else ''}\n")
    return r.status, urllib.parse.urljoin(url, to) if to else None, text


def main():
    method, url, form = "GET", next(u for u in o.url if u.startswith("http")), None
    for _ in range(30):
        if o.stop_at and o.stop_at in url: print(url); return 0
        status, to, text = step(method, url, form)
        method, form = "GET", None
        if to: url = to; continue
        page = Forms(text)
        names = {f["name"] for _, f in page.fields}
        if status >= 400 or page.action is None or not names & {"token", "decision"}:
            print(f"{status} {' '.join(page.text.split())[:200]}", file=sys.stderr if status >= 400 else sys.stdout)
            return int(status >= 400)
        form = [(f["name"], f.get("value", "")) for tag, f in page.fields if tag == "input" and (f.get("type") == "hidden" or "checked" in f) and not (f["name"] == "scope" and o.only and f.get("value") != o.only)]
        if "token" in names: form.append(("token", o.token))
        if "decision" in names: form.append(("decision", o.decision))
        method, url = "POST", urllib.parse.urljoin(url, page.action)
    print("too many steps", file=sys.stderr); return 1


try: code = main()
finally:
    if o.jar: json.dump(jar, open(o.jar, "w"))
sys.exit(code)

//! What trusted backends are told of whoever calls: headers that are made of what the gateway knows of the caller, and a
//! token that says the same and is signed. They are made for one principal and sent with its requests alone. What the
//! gateway does not know is not sent: no header is empty, and none is another's.

mod template;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use chrono::Utc;
use drawbridge_auth::records::Records;
use drawbridge_auth::revoking::{RevocationKey, Revocations};
use drawbridge_auth::signing::{Signer, Told};
use drawbridge_core::credentials::{Credential, Credentials, Refusal};
use drawbridge_core::{Fault, Principal, Subject, SubjectKind};
use parking_lot::Mutex;
use tokio::time::Instant;

pub use self::template::{BadTemplate, Template};

/// The header with the token.
pub const IDENTITY_HEADER: &str = "drawbridge-identity";
/// What is known of a user is looked up again after this long, or as soon as it is known to have changed.
const FRESH: Duration = Duration::from_secs(30);
/// While it can't be looked up it is used for this long.
const STALE: Duration = Duration::from_secs(300);
const MAX_KNOWN: usize = 10_000;
/// A header that would be longer is not sent.
const MAX_VALUE: usize = 8 * 1024;

/// What the gateway knows of a user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Person {
    /// An address, as the identity provider says.
    pub email: Option<String>,
    /// A name, for display.
    pub name: Option<String>,
    /// Groups, as the identity provider says.
    pub groups: BTreeSet<String>,
    /// Another one is another state of all this.
    pub version: i64,
}

/// Who knows users.
#[async_trait]
pub trait People: Send + Sync {
    /// The user with this id, who may do something.
    ///
    /// # Errors
    ///
    /// If that can't be told now.
    async fn find(&self, id: &str) -> Result<Option<Person>, String>;

    /// Whether that is another by now.
    fn has_changed(&self, id: &str, version: i64) -> bool;
}

/// Those of the records.
pub struct OfRecords {
    records: Arc<dyn Records>,
    revocations: Arc<Revocations>,
}

impl OfRecords {
    /// The users of `records`, whose changes `revocations` tell of.
    pub fn new(records: Arc<dyn Records>, revocations: Arc<Revocations>) -> Self {
        Self { records, revocations }
    }
}

#[async_trait]
impl People for OfRecords {
    async fn find(&self, id: &str) -> Result<Option<Person>, String> {
        let user = self.records.user(id).await.map_err(|why| why.to_string())?;
        let user = user.filter(|user| user.disabled_at.is_none());
        Ok(user.map(|user| {
            let (email, name, groups, version) = (user.email, user.name, user.groups, user.version);
            Person { email, name, groups, version }
        }))
    }

    fn has_changed(&self, id: &str, version: i64) -> bool {
        self.revocations.is_revoked(&RevocationKey::user(id, version))
    }
}

/// What is known of callers, for all backends that are told of them.
pub struct Callers {
    people: Arc<dyn People>,
    signer: Option<Arc<Signer>>,
    known: Mutex<HashMap<String, (Arc<Person>, Instant)>>,
}

impl Callers {
    /// Callers that `people` knows. `signer` signs what backends are told.
    pub fn new(people: Arc<dyn People>, signer: Option<Arc<Signer>>) -> Self {
        Self { people, signer, known: Mutex::default() }
    }

    /// A user, and until when that is used.
    async fn person(&self, id: &str) -> Result<Option<(Arc<Person>, Instant)>, String> {
        let known = self.known.lock().get(id).cloned();
        let known = known.filter(|(person, _)| !self.people.has_changed(id, person.version));
        if let Some((person, at)) = &known
            && at.elapsed() < FRESH
        {
            return Ok(Some((person.clone(), *at + FRESH)));
        }
        let now = Instant::now();
        match (self.people.find(id).await, known) {
            (Ok(Some(person)), _) => {
                let person = Arc::new(person);
                let mut all = self.known.lock();
                make_room(&mut all, |(_, at)| at.elapsed() < FRESH);
                all.insert(id.to_owned(), (person.clone(), now));
                Ok(Some((person, now + FRESH)))
            }
            (Ok(None), _) => {
                self.known.lock().remove(id);
                Ok(None)
            }
            // It is tried again with the next request.
            (Err(_), Some((person, at))) if at.elapsed() < STALE => Ok(Some((person, now))),
            (Err(why), _) => Err(why),
        }
    }
}

/// Lets what is of no use go if there is much.
fn make_room<T>(all: &mut HashMap<String, T>, is_of_use: impl Fn(&T) -> bool) {
    if all.len() >= MAX_KNOWN {
        all.retain(|_, one| is_of_use(one));
        if all.len() >= MAX_KNOWN {
            all.clear();
        }
    }
}

/// Tells one backend of callers.
pub struct OfCaller {
    backend: String,
    headers: Vec<(String, Template)>,
    /// For whom a token is signed, if one is.
    audience: Option<String>,
    callers: Arc<Callers>,
    beside: Option<Arc<dyn Credentials>>,
    /// By the name of the principal.
    made: Mutex<HashMap<String, Made>>,
}

#[derive(Clone)]
struct Made {
    headers: Arc<[(String, String)]>,
    /// Of the user, if that matters.
    version: Option<i64>,
    until: Instant,
}

impl OfCaller {
    /// Tells `backend` these headers, beside what `beside` gives.
    pub fn new(
        backend: &str,
        headers: Vec<(String, Template)>,
        callers: Arc<Callers>,
        beside: Option<Arc<dyn Credentials>>,
    ) -> Self {
        let (backend, made) = (backend.to_owned(), Mutex::default());
        Self { backend, headers, audience: None, callers, beside, made }
    }

    /// The same with a token whose audience is `audience`.
    #[must_use]
    pub fn signed(self, audience: String) -> Self {
        Self { audience: Some(audience), ..self }
    }

    fn no_credential(&self, detail: &str) -> Fault {
        Fault::NoCredential { backend: self.backend.clone(), detail: detail.to_owned() }
    }

    /// Whether more is told than who the caller is.
    fn needs_person(&self) -> bool {
        self.audience.is_some() || self.headers.iter().any(|(_, template)| template.needs_person())
    }

    fn known(&self, whom: &Principal, subject: &Subject) -> Option<Made> {
        let made = self.made.lock().get(whom.as_str()).cloned()?;
        let is_over = Instant::now() >= made.until;
        let has_changed =
            made.version.is_some_and(|version| self.callers.people.has_changed(&subject.id, version));
        (!is_over && !has_changed).then_some(made)
    }

    /// What is told of `whom`: nothing of somebody who was not asked who they are.
    async fn told(&self, whom: &Principal) -> Result<Arc<[(String, String)]>, Fault> {
        let Some(subject) = whom.subject() else { return Ok(Arc::default()) };
        if let Some(made) = self.known(whom, subject) {
            return Ok(made.headers);
        }
        let mut until = Instant::now() + FRESH;
        let mut person = None;
        if self.needs_person() && subject.kind == SubjectKind::User {
            let found = self.callers.person(&subject.id).await.map_err(|why| {
                tracing::warn!(
                    backend.name = self.backend,
                    user.id = subject.id,
                    "a user can't be looked up: {why}"
                );
                self.no_credential("it is to be told who calls, and that can't be looked up")
            })?;
            let (found, until_then) = found
                .ok_or_else(|| self.no_credential("it is to be told who calls, and there is no such user"))?;
            until = until_then;
            person = Some(found);
        }
        let headers: Arc<[(String, String)]> = self.make(subject, person.as_deref())?.into();
        let version = person.map(|person| person.version);
        let made = Made { headers: headers.clone(), version, until };
        let mut all = self.made.lock();
        make_room(&mut all, |made| Instant::now() < made.until);
        all.insert(whom.as_str().to_owned(), made);
        Ok(headers)
    }

    fn make(&self, subject: &Subject, person: Option<&Person>) -> Result<Vec<(String, String)>, Fault> {
        let filled = self
            .headers
            .iter()
            .filter_map(|(name, template)| Some((name.clone(), template.fill(subject, person)?)));
        let mut made: Vec<(String, String)> = filled.collect();
        if let (Some(audience), Some(sub)) = (&self.audience, template::sub(subject)) {
            let text = |text: Option<&String>| text.filter(|text| !text.is_empty()).cloned();
            let (email, name) =
                (text(person.and_then(|p| p.email.as_ref())), text(person.and_then(|p| p.name.as_ref())));
            let told = Told {
                sub: &sub,
                aud: audience,
                client_id: &subject.client,
                email: email.as_deref(),
                name: name.as_deref(),
                groups: person.map(|person| &person.groups).filter(|groups| !groups.is_empty()),
            };
            let signer =
                self.callers.signer.as_ref().ok_or_else(|| self.no_credential("nothing can be signed"))?;
            let token = signer.identify(&told, Utc::now()).map_err(|why| {
                tracing::error!(backend.name = self.backend, "the caller's identity can't be signed: {why}");
                self.no_credential("it is to be told who calls, and that can't be signed")
            })?;
            made.push((IDENTITY_HEADER.to_owned(), token));
        }
        made.retain(|(name, value)| {
            let fits = value.len() <= MAX_VALUE;
            if !fits {
                tracing::warn!(
                    backend.name = self.backend,
                    "the header {name} is not sent for {}: it would be longer than {MAX_VALUE} bytes",
                    subject.id
                );
            }
            fits
        });
        Ok(made)
    }

    async fn with(&self, whom: &Principal, credential: Option<Credential>) -> Result<Credential, Fault> {
        let told = self.told(whom).await?;
        Ok(match credential {
            None => Credential::new(told, "caller"),
            Some(credential) => {
                let others = credential.headers().map(|(name, value)| (name.to_owned(), value.to_owned()));
                Credential::new(told.iter().cloned().chain(others).collect::<Vec<_>>(), credential.id())
            }
        })
    }
}

#[async_trait]
impl Credentials for OfCaller {
    async fn find(&self, whom: &Principal) -> Result<Credential, Fault> {
        let beside = match &self.beside {
            Some(beside) => Some(beside.find(whom).await?),
            None => None,
        };
        self.with(whom, beside).await
    }

    async fn refused(
        &self,
        whom: &Principal,
        credential: &Credential,
        refusal: &Refusal,
    ) -> Result<Option<Credential>, Fault> {
        let Some(beside) = &self.beside else { return Ok(None) };
        match beside.refused(whom, credential, refusal).await? {
            Some(next) => self.with(whom, Some(next)).await.map(Some),
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests;

//! All that people read, in the languages that there are.

use http::{HeaderMap, header};

/// The words of the pages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Text {
    /// Of the `lang` attribute.
    pub(crate) language: &'static str,
    /// Titles and buttons.
    pub(crate) sign_in: &'static str,
    /// What a sign-in token is.
    pub(crate) sign_in_hint: &'static str,
    /// The label of the field.
    pub(crate) sign_in_label: &'static str,
    /// It was none.
    pub(crate) sign_in_wrong: &'static str,
    /// Title of the consent page.
    pub(crate) consent: &'static str,
    /// "... wants to use ..."
    pub(crate) wants: &'static str,
    /// What follows is what the client is allowed.
    pub(crate) may: &'static str,
    /// Of `mcp:read`.
    pub(crate) scope_read: &'static str,
    /// Of `mcp:write`.
    pub(crate) scope_write: &'static str,
    /// Signed in as.
    pub(crate) signed_in_as: &'static str,
    /// To sign in as another.
    pub(crate) not_you: &'static str,
    /// Where the browser goes after an answer.
    pub(crate) sent_to: &'static str,
    /// The same, for a program on the machine.
    pub(crate) sent_to_program: &'static str,
    /// The client says its own name.
    pub(crate) unverified: &'static str,
    /// The operator has named the client.
    pub(crate) is_named: &'static str,
    /// A client that is known by its domain.
    pub(crate) verified_by: &'static str,
    /// A redirect that is nobody's that is known.
    pub(crate) unlisted: &'static str,
    /// A client that is known by its domain, and answered on the user's machine alone.
    pub(crate) any_program: &'static str,
    /// The name of the resource.
    pub(crate) resource: &'static str,
    /// Button.
    pub(crate) allow: &'static str,
    /// Button.
    pub(crate) deny: &'static str,
    /// Title of the error page.
    pub(crate) error: &'static str,
    /// There is nothing more to do on the page.
    pub(crate) close: &'static str,
    /// The client is not registered.
    pub(crate) unknown_client: &'static str,
    /// What the client says of itself can't be had or is wrong.
    pub(crate) bad_document: &'static str,
    /// The client was disabled.
    pub(crate) disabled_client: &'static str,
    /// The redirect URI is not the client's.
    pub(crate) bad_redirect: &'static str,
    /// The request is malformed.
    pub(crate) bad_request: &'static str,
    /// The transaction is over or another browser's.
    pub(crate) expired: &'static str,
    /// The form was sent before, and its answer is used.
    pub(crate) answered: &'static str,
    /// The form has come from elsewhere.
    pub(crate) forged: &'static str,
    /// The user is disabled or not let in.
    pub(crate) not_allowed: &'static str,
    /// Something is down.
    pub(crate) unavailable: &'static str,
    /// Too many attempts.
    pub(crate) slow_down: &'static str,
    /// The identity provider said no.
    pub(crate) provider_failed: &'static str,
    /// Title of the page on which an account is connected.
    pub(crate) connect: &'static str,
    /// What that is.
    pub(crate) connect_hint: &'static str,
    /// When not to do it.
    pub(crate) connect_warning: &'static str,
    /// Of the service.
    pub(crate) connect_backend: &'static str,
    /// Button.
    pub(crate) connect_go: &'static str,
    /// Button.
    pub(crate) connect_again: &'static str,
    /// Of what a user has got at a service.
    pub(crate) key: &'static str,
    /// What that is, and what becomes of it.
    pub(crate) key_hint: &'static str,
    /// Title of what a client will need on the consent page.
    pub(crate) needs_accounts: &'static str,
    /// When to connect them.
    pub(crate) needs_accounts_hint: &'static str,
    /// Of a link, before the name of a service.
    pub(crate) connect_first: &'static str,
    /// Of a link to the consent page.
    pub(crate) back: &'static str,
    /// Of a link.
    pub(crate) key_where: &'static str,
    /// It is none.
    pub(crate) key_wrong: &'static str,
    /// It is done.
    pub(crate) connected: &'static str,
    /// What to do then.
    pub(crate) connected_return: &'static str,
    /// State of an account.
    pub(crate) is_connected: &'static str,
    /// State of an account.
    pub(crate) not_connected: &'static str,
    /// State of an account.
    pub(crate) needs_connect: &'static str,
    /// Title of the page of accounts.
    pub(crate) connections: &'static str,
    /// There are none.
    pub(crate) no_connections: &'static str,
    /// Title of the list of a user's own tokens.
    pub(crate) tokens: &'static str,
    /// What they are.
    pub(crate) tokens_hint: &'static str,
    /// There are none.
    pub(crate) no_tokens: &'static str,
    /// Who has signed in with a token makes none.
    pub(crate) tokens_by_login: &'static str,
    /// There are as many as there may be.
    pub(crate) tokens_too_many: &'static str,
    /// Title of the form.
    pub(crate) token_new: &'static str,
    /// Button.
    pub(crate) token_make: &'static str,
    /// Button.
    pub(crate) token_revoke: &'static str,
    /// Of its last characters.
    pub(crate) token_hint: &'static str,
    /// Label.
    pub(crate) token_name: &'static str,
    /// Label.
    pub(crate) token_scopes: &'static str,
    /// Label.
    pub(crate) token_endpoint: &'static str,
    /// The default endpoint.
    pub(crate) token_default: &'static str,
    /// Label.
    pub(crate) token_days: &'static str,
    /// Of its last use.
    pub(crate) token_used: &'static str,
    /// It has none.
    pub(crate) token_unused: &'static str,
    /// Of its end.
    pub(crate) token_ends: &'static str,
    /// It has none.
    pub(crate) token_endless: &'static str,
    /// Title of the page that shows the secret.
    pub(crate) token_made: &'static str,
    /// What to do with it.
    pub(crate) token_made_hint: &'static str,
    /// The name is none.
    pub(crate) token_name_wrong: &'static str,
    /// The scopes are none.
    pub(crate) token_scope_wrong: &'static str,
    /// The time is too long, or none.
    pub(crate) token_days_wrong: &'static str,
    /// There is no such endpoint.
    pub(crate) token_endpoint_wrong: &'static str,
    /// Button.
    pub(crate) disconnect: &'static str,
    /// Button.
    pub(crate) switch: &'static str,
    /// The link is for another user.
    pub(crate) other_account: &'static str,
    /// The link or the form is too old or another's.
    pub(crate) link_expired: &'static str,
    /// The user has said no at the other service.
    pub(crate) connect_denied: &'static str,
    /// The other service has answered something that is not accepted.
    pub(crate) connect_failed: &'static str,
    /// The operator has to do something.
    pub(crate) connect_impossible: &'static str,
}

const ENGLISH: Text = Text {
    language: "en",
    sign_in: "Sign in",
    sign_in_hint: "Enter the sign-in token that an administrator of this gateway has given you.",
    sign_in_label: "Sign-in token",
    sign_in_wrong: "That token is not valid for signing in. Check it, or ask your administrator for a new one.",
    consent: "Allow access?",
    wants: "wants to use this gateway in your name.",
    may: "It will be able to:",
    scope_read: "see and read what the connected servers offer",
    scope_write: "call tools, which may change things",
    signed_in_as: "Signed in as",
    not_you: "Not you?",
    sent_to: "Afterwards you will be sent to",
    sent_to_program: "Afterwards you will be sent to a program on this computer, port",
    unverified: "The application has given this name itself. Nobody has checked it.",
    is_named: "Your administrator has entered this application here.",
    verified_by: "An application of",
    unlisted: "This address is not one of a known application. Continue only if you know it.",
    any_program: "Any program on this computer can say that it is this application. Continue only if you have just started it yourself.",
    resource: "Access to",
    allow: "Allow",
    deny: "Deny",
    error: "This did not work",
    close: "You can close this page.",
    unknown_client: "This application is not registered here. Remove the server in your application and add it again.",
    bad_document: "This application's description of itself can't be fetched or is not valid. Try again in a minute; if that does not help, tell whoever makes the application.",
    disabled_client: "This application was disabled by an administrator.",
    bad_redirect: "The application wants to be answered at an address that it has not registered:",
    bad_request: "The application's request is malformed:",
    expired: "This page is too old, or was opened in another browser. Start again in your application.",
    answered: "You have already answered this. Go on in your application; if it did not get your answer, start again there.",
    forged: "This form was not sent from the page it belongs to. Start again in your application.",
    not_allowed: "Your account may not use this gateway. Ask your administrator.",
    unavailable: "The gateway can't do this right now. Try again in a moment.",
    slow_down: "Too many attempts. Wait a minute and try again.",
    provider_failed: "Your identity provider did not let you sign in. Start again in your application.",
    connect: "Connect an account",
    connect_hint: "An application that you use through this gateway needs your account at another service.",
    connect_warning: "Go on only if you have just been asked for this in your own application. Whoever uses this gateway as you can then act with that account.",
    connect_backend: "Service",
    connect_go: "Connect",
    connect_again: "Connect again",
    key: "Your key at this service",
    key_hint: "The key or token that this service has given you. It is kept sealed, and sent to this service alone.",
    needs_accounts: "It will use your accounts at",
    needs_accounts_hint: "Connect what you need now, and come back here; or later, when your application asks for it.",
    connect_first: "Connect",
    back: "Back to your application's request",
    key_where: "Where to get one",
    key_wrong: "This is no key: a key is one line of plain letters, digits and signs.",
    connected: "Connected",
    connected_return: "You can close this page and return to your application.",
    is_connected: "connected",
    not_connected: "not connected",
    needs_connect: "has to be connected again",
    connections: "Your accounts at other services",
    no_connections: "No service behind this gateway needs an account of yours.",
    tokens: "Your tokens",
    tokens_hint: "For applications that can't log in, and take a token as a setting. Whoever has one acts as you.",
    no_tokens: "You have none.",
    tokens_by_login: "You have signed in with a token. To make another, sign in with your account, or ask your administrator.",
    tokens_too_many: "You have as many tokens as you may have. Revoke one that you no longer need.",
    token_new: "A new token",
    token_make: "Make a token",
    token_revoke: "Revoke",
    token_hint: "Ends with",
    token_name: "What it is for",
    token_scopes: "What it allows",
    token_endpoint: "Endpoint",
    token_default: "the default endpoint",
    token_days: "How many days it is good for (366 at most)",
    token_used: "Last used",
    token_unused: "never",
    token_ends: "Good until",
    token_endless: "no end",
    token_made: "Your new token",
    token_made_hint: "Copy it now into your application: it is not shown again. If you lose it, revoke it and make another.",
    token_name_wrong: "Say what the token is for, in 128 characters at most.",
    token_scope_wrong: "Choose what the token allows.",
    token_days_wrong: "A token is good for 1 to 366 days.",
    token_endpoint_wrong: "There is no such endpoint.",
    disconnect: "Disconnect",
    switch: "Sign in as another user",
    other_account: "This link belongs to another account. Sign in as the user that it was made for, or ask for a new one in your own application.",
    link_expired: "This link or page is too old, or was opened in another browser. Ask for a new one in your application, or open your list of accounts.",
    connect_denied: "The account was not connected, since you did not agree at the other service.",
    connect_failed: "The account was not connected: the answer of the other service was not accepted. Try again; if that does not help, tell your administrator.",
    connect_impossible: "Accounts can't be connected at this service right now. Your administrator can see why.",
};

const GERMAN: Text = Text {
    language: "de",
    sign_in: "Anmelden",
    sign_in_hint: "Geben Sie das Anmelde-Token ein, das Sie von der Verwaltung dieses Gateways bekommen haben.",
    sign_in_label: "Anmelde-Token",
    sign_in_wrong: "Mit diesem Token kann man sich nicht anmelden. Prüfen Sie es, oder bitten Sie die Verwaltung um ein neues.",
    consent: "Zugriff erlauben?",
    wants: "möchte dieses Gateway in Ihrem Namen benutzen.",
    may: "Die Anwendung kann dann:",
    scope_read: "sehen und lesen, was die angeschlossenen Server anbieten",
    scope_write: "Werkzeuge aufrufen, die etwas verändern können",
    signed_in_as: "Angemeldet als",
    not_you: "Das sind nicht Sie?",
    sent_to: "Danach geht es weiter bei",
    sent_to_program: "Danach geht es weiter bei einem Programm auf diesem Rechner, Port",
    unverified: "Diesen Namen hat die Anwendung sich selbst gegeben. Niemand hat ihn geprüft.",
    is_named: "Diese Anwendung hat Ihre Verwaltung hier eingetragen.",
    verified_by: "Eine Anwendung von",
    unlisted: "Diese Adresse gehört zu keiner bekannten Anwendung. Fahren Sie nur fort, wenn Sie sie kennen.",
    any_program: "Jedes Programm auf diesem Rechner kann sich als diese Anwendung ausgeben. Fahren Sie nur fort, wenn Sie sie gerade selbst gestartet haben.",
    resource: "Zugriff auf",
    allow: "Erlauben",
    deny: "Ablehnen",
    error: "Das hat nicht geklappt",
    close: "Sie können diese Seite schließen.",
    unknown_client: "Diese Anwendung ist hier nicht registriert. Entfernen Sie den Server in Ihrer Anwendung und fügen Sie ihn neu hinzu.",
    bad_document: "Die Selbstbeschreibung dieser Anwendung ist nicht erreichbar oder nicht gültig. Versuchen Sie es in einer Minute noch einmal; hilft das nicht, wenden Sie sich an den Hersteller der Anwendung.",
    disabled_client: "Diese Anwendung wurde von der Verwaltung gesperrt.",
    bad_redirect: "Die Anwendung möchte die Antwort an eine Adresse haben, die sie nicht registriert hat:",
    bad_request: "Die Anfrage der Anwendung ist fehlerhaft:",
    expired: "Diese Seite ist zu alt oder wurde in einem anderen Browser geöffnet. Beginnen Sie in Ihrer Anwendung von vorn.",
    answered: "Sie haben hier schon geantwortet. Machen Sie in Ihrer Anwendung weiter; hat sie Ihre Antwort nicht bekommen, beginnen Sie dort von vorn.",
    forged: "Dieses Formular kam nicht von der Seite, zu der es gehört. Beginnen Sie in Ihrer Anwendung von vorn.",
    not_allowed: "Ihr Konto darf dieses Gateway nicht benutzen. Fragen Sie die Verwaltung.",
    unavailable: "Das Gateway kann das gerade nicht. Versuchen Sie es gleich noch einmal.",
    slow_down: "Zu viele Versuche. Warten Sie eine Minute und versuchen Sie es noch einmal.",
    provider_failed: "Ihr Anmeldedienst hat Sie nicht angemeldet. Beginnen Sie in Ihrer Anwendung von vorn.",
    connect: "Konto verbinden",
    connect_hint: "Eine Anwendung, die Sie über dieses Gateway benutzen, braucht Ihr Konto bei einem anderen Dienst.",
    connect_warning: "Fahren Sie nur fort, wenn Ihre eigene Anwendung gerade danach gefragt hat. Wer dieses Gateway in Ihrem Namen benutzt, kann dann mit diesem Konto handeln.",
    connect_backend: "Dienst",
    connect_go: "Verbinden",
    connect_again: "Neu verbinden",
    key: "Ihr Schlüssel bei diesem Dienst",
    key_hint: "Der Schlüssel oder das Token, das dieser Dienst Ihnen gegeben hat. Es wird versiegelt aufbewahrt und nur an diesen Dienst gesendet.",
    needs_accounts: "Sie benutzt Ihre Konten bei",
    needs_accounts_hint: "Verbinden Sie jetzt, was Sie brauchen, und kommen Sie hierher zurück; oder später, wenn Ihre Anwendung danach fragt.",
    connect_first: "Verbinden:",
    back: "Zurück zur Anfrage Ihrer Anwendung",
    key_where: "Wo man einen bekommt",
    key_wrong: "Das ist kein Schlüssel: Ein Schlüssel ist eine Zeile aus einfachen Buchstaben, Ziffern und Zeichen.",
    connected: "Verbunden",
    connected_return: "Sie können diese Seite schließen und zu Ihrer Anwendung zurückkehren.",
    is_connected: "verbunden",
    not_connected: "nicht verbunden",
    needs_connect: "muss neu verbunden werden",
    connections: "Ihre Konten bei anderen Diensten",
    no_connections: "Kein Dienst hinter diesem Gateway braucht ein Konto von Ihnen.",
    tokens: "Ihre Tokens",
    tokens_hint: "Für Anwendungen, die sich nicht anmelden können und ein Token als Einstellung nehmen. Wer eines hat, handelt in Ihrem Namen.",
    no_tokens: "Sie haben keine.",
    tokens_by_login: "Sie haben sich mit einem Token angemeldet. Um ein weiteres zu machen, melden Sie sich mit Ihrem Konto an, oder fragen Sie die Verwaltung.",
    tokens_too_many: "Sie haben so viele Tokens, wie Sie haben dürfen. Widerrufen Sie eines, das Sie nicht mehr brauchen.",
    token_new: "Ein neues Token",
    token_make: "Token machen",
    token_revoke: "Widerrufen",
    token_hint: "Endet mit",
    token_name: "Wofür es ist",
    token_scopes: "Was es erlaubt",
    token_endpoint: "Endpunkt",
    token_default: "der voreingestellte Endpunkt",
    token_days: "Wie viele Tage es gilt (höchstens 366)",
    token_used: "Zuletzt benutzt",
    token_unused: "nie",
    token_ends: "Gilt bis",
    token_endless: "ohne Ende",
    token_made: "Ihr neues Token",
    token_made_hint: "Kopieren Sie es jetzt in Ihre Anwendung: Es wird nicht noch einmal gezeigt. Wenn Sie es verlieren, widerrufen Sie es und machen ein neues.",
    token_name_wrong: "Sagen Sie, wofür das Token ist, mit höchstens 128 Zeichen.",
    token_scope_wrong: "Wählen Sie, was das Token erlaubt.",
    token_days_wrong: "Ein Token gilt 1 bis 366 Tage.",
    token_endpoint_wrong: "Diesen Endpunkt gibt es nicht.",
    disconnect: "Trennen",
    switch: "Als anderer Benutzer anmelden",
    other_account: "Dieser Link gehört zu einem anderen Konto. Melden Sie sich als der Benutzer an, für den er gemacht wurde, oder lassen Sie sich in Ihrer eigenen Anwendung einen neuen geben.",
    link_expired: "Dieser Link oder diese Seite ist zu alt oder wurde in einem anderen Browser geöffnet. Lassen Sie sich in Ihrer Anwendung einen neuen geben, oder öffnen Sie die Liste Ihrer Konten.",
    connect_denied: "Das Konto wurde nicht verbunden, weil Sie beim anderen Dienst nicht zugestimmt haben.",
    connect_failed: "Das Konto wurde nicht verbunden: Die Antwort des anderen Dienstes wurde nicht angenommen. Versuchen Sie es noch einmal; hilft das nicht, wenden Sie sich an die Verwaltung.",
    connect_impossible: "Bei diesem Dienst können gerade keine Konten verbunden werden. Die Verwaltung kann sehen, warum.",
};

impl Text {
    /// In the language that a browser prefers.
    pub(crate) fn of(headers: &HeaderMap) -> &'static Self {
        let accepted = headers.get(header::ACCEPT_LANGUAGE).and_then(|value| value.to_str().ok());
        let first = accepted.and_then(|all| {
            all.split(',')
                .map(|one| one.trim().get(..2).unwrap_or_default().to_ascii_lowercase())
                .find(|language| matches!(language.as_str(), "en" | "de"))
        });
        if first.as_deref() == Some("de") { &GERMAN } else { &ENGLISH }
    }
}

/// A text of somebody else as it may be shown: without what is not printed or changes the direction, and not longer than
/// `most` characters.
pub(crate) fn printable(text: &str, most: usize) -> String {
    let is_unseen = |c: char| {
        matches!(c, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}')
    };
    text.chars().filter(|c| !c.is_control() && !is_unseen(*c)).take(most).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_browser_says_which_language() {
        let of = |accepted: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_LANGUAGE, accepted.parse().unwrap());
            Text::of(&headers).language
        };
        assert_eq!(of("de-CH,de;q=0.9,en;q=0.8"), "de");
        assert_eq!(of("fr, en-US;q=0.8, de;q=0.5"), "en");
        assert_eq!(of("fr"), "en");
        assert_eq!(of("é"), "en");
        assert_eq!(Text::of(&HeaderMap::new()).language, "en");
    }

    #[test]
    fn what_turns_or_hides_text_is_not_shown() {
        assert_eq!(printable("a\u{202e}b\n\u{200b}c\u{0}", 9), "abc");
        assert_eq!(printable("abc", 2), "ab");
    }
}

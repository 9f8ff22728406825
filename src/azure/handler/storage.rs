//! Shared by the handlers that write to a storage account: the meaning of its refusals.

use highwater_engine::handler::HandlerError;

use crate::{Answer, Failure};

/// The destination of rows in a storage account.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resource<'a> {
    /// Its kind, such as `container`.
    pub(super) kind: &'static str,
    pub(super) name: &'a str,
    /// The role that an identity needs on it.
    pub(super) role: &'static str,
    /// The permissions that a signature needs.
    pub(super) rights: &'static str,
}

impl Resource<'_> {
    /// Classifies a failed request.
    pub(super) fn failed(&self, failure: &Failure) -> HandlerError {
        let Self { kind, name, .. } = self;
        match failure {
            Failure::NotSent(reason) | Failure::NoAnswer(reason) => {
                HandlerError::Retryable(format!("{kind} `{name}`: {reason}"))
            }
            Failure::Answered(answer) => {
                let text = format!("{kind} `{name}` answered {}", answer.text);
                match answer.status {
                    413 => HandlerError::TooLarge(text),
                    429 => HandlerError::Throttled { reason: text, retry_after: None },
                    408 | 500.. => HandlerError::Retryable(text),
                    _ => HandlerError::Misconfigured(format!("{text}: {}", self.remedy(answer))),
                }
            }
        }
    }

    /// Returns the outcome of a request that timed out.
    pub(super) fn timed_out(&self) -> HandlerError {
        let Self { kind, name, .. } = self;
        HandlerError::Retryable(format!("{kind} `{name}`: timed out"))
    }

    /// Returns the fix for an answer that a retry will not change.
    fn remedy(&self, answer: &Answer) -> String {
        let Self { kind, name, role, rights } = self;
        let role = || format!("the identity needs the role `{role}` on the {kind} `{name}`");
        match (answer.status, answer.code.as_str()) {
            (404, _) => format!("create the {kind} `{name}` in the storage account"),
            (409, code) if code.ends_with("BeingDeleted") => {
                format!("the {kind} is being deleted; use another, or wait")
            }
            (_, "KeyBasedAuthenticationNotPermitted") => {
                format!("the account does not accept keys; connect with an identity: {}", role())
            }
            (_, "AuthenticationFailed") => format!(
                "check the account key, the signature's expiry and this machine's clock; {}",
                role()
            ),
            (401 | 403, _) => {
                let network = "the account's network rules must allow this address";
                format!("a signature needs the permissions `{rights}`; {}; {network}", role())
            }
            (400, "InvalidHeaderValue") => "the emulator must be Azurite 3.37 or newer".to_owned(),
            (_, _) => format!("check the storage address and the name of the {kind}"),
        }
    }
}

#[cfg(test)]
mod tests {
    mod bad_input;

    use expect_test::expect;

    use super::*;

    #[test]
    fn refusals_are_reported_with_a_fix() {
        let resource = Resource {
            kind: "container",
            name: "changes",
            role: "Storage Blob Data Contributor",
            rights: "c",
        };
        let mut texts = Vec::new();
        for (status, code) in [
            (400, "InvalidHeaderValue"),
            (400, "InvalidResourceName"),
            (403, "AuthenticationFailed"),
            (403, "AuthorizationPermissionMismatch"),
            (403, "KeyBasedAuthenticationNotPermitted"),
            (404, "ContainerNotFound"),
            (409, "ContainerBeingDeleted"),
            (413, "RequestBodyTooLarge"),
            (429, ""),
            (408, ""),
            (500, "OperationTimedOut"),
            (503, "ServerBusy"),
        ] {
            let text = format!("HTTP {status} {code}");
            let answer = Answer { status, code: code.to_owned(), date: None, text };
            texts.push(format!("{:?}", resource.failed(&Failure::Answered(answer))));
        }
        let lost = Failure::NoAnswer("timed out".to_owned());
        texts.push(format!("{:?}", resource.failed(&lost)));
        expect![[r#"
            Misconfigured("container `changes` answered HTTP 400 InvalidHeaderValue: the emulator must be Azurite 3.37 or newer")
            Misconfigured("container `changes` answered HTTP 400 InvalidResourceName: check the storage address and the name of the container")
            Misconfigured("container `changes` answered HTTP 403 AuthenticationFailed: check the account key, the signature's expiry and this machine's clock; the identity needs the role `Storage Blob Data Contributor` on the container `changes`")
            Misconfigured("container `changes` answered HTTP 403 AuthorizationPermissionMismatch: a signature needs the permissions `c`; the identity needs the role `Storage Blob Data Contributor` on the container `changes`; the account's network rules must allow this address")
            Misconfigured("container `changes` answered HTTP 403 KeyBasedAuthenticationNotPermitted: the account does not accept keys; connect with an identity: the identity needs the role `Storage Blob Data Contributor` on the container `changes`")
            Misconfigured("container `changes` answered HTTP 404 ContainerNotFound: create the container `changes` in the storage account")
            Misconfigured("container `changes` answered HTTP 409 ContainerBeingDeleted: the container is being deleted; use another, or wait")
            TooLarge("container `changes` answered HTTP 413 RequestBodyTooLarge")
            Throttled { reason: "container `changes` answered HTTP 429 ", retry_after: None }
            Retryable("container `changes` answered HTTP 408 ")
            Retryable("container `changes` answered HTTP 500 OperationTimedOut")
            Retryable("container `changes` answered HTTP 503 ServerBusy")
            Retryable("container `changes`: timed out")
        "#]].assert_eq(&(texts.join("\n") + "\n"));
    }
}

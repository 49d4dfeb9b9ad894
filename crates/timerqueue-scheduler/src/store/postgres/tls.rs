//! TLS of the connections: which certificates of a server are accepted.
//!
//! Ground rules. Certificates are judged by rustls. Only two checks are weaker than its own:
//! `verify-ca` passes over the name, and `prefer` over the certificate. `prefer` protects against
//! listeners alone: the other side of an attack could as well offer no TLS.

use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::address::{Mode, Place};
use super::error::Failure;
use crate::store::Fault;

fn invalid(reason: &str) -> Failure {
    Failure::new(Fault::CannotOpen, reason)
}

/// For each server of an address. The certificates of authorities are read once, and only if a
/// server needs them.
pub(super) fn connectors(places: &[Place], roots: Option<&Path>) -> Result<Vec<MakeRustlsConnect>, Failure> {
    let provider = Arc::new(ring::default_provider());
    let mut known: Option<Arc<RootCertStore>> = None;
    let mut connector = |place: &Place| {
        let verifier: Arc<dyn ServerCertVerifier> = match place.mode {
            Mode::Disable | Mode::Prefer => Arc::new(Lenient { authority: None, provider: Arc::clone(&provider) }),
            mode => {
                let roots = match &known {
                    Some(roots) => Arc::clone(roots),
                    None => Arc::clone(known.insert(Arc::new(authorities(roots)?))),
                };
                let strict = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider));
                let strict = strict.build().map_err(|error| invalid(&error.to_string()))?;
                match mode {
                    Mode::Authority => Arc::new(Lenient { authority: Some(strict), provider: Arc::clone(&provider) }),
                    _ => strict,
                }
            }
        };
        let config = ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
        let mut config = config
            .map_err(|error| invalid(&error.to_string()))?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        // Asked for by `sslnegotiation=direct`.
        config.alpn_protocols = vec![b"postgresql".to_vec()];
        Ok(MakeRustlsConnect::new(config))
    };
    places.iter().map(&mut connector).collect()
}

/// The certificates of a PEM file, or those of the system.
fn authorities(file: Option<&Path>) -> Result<RootCertStore, Failure> {
    let mut roots = RootCertStore::empty();
    let Some(file) = file else {
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
        return match found.errors.first() {
            Some(error) if roots.is_empty() => Err(invalid(&format!("the system's authorities: {error}"))),
            None if roots.is_empty() => Err(invalid("the system knows no authority: name a PEM file")),
            _ => Ok(roots),
        };
    };
    let unreadable = |error: &dyn std::fmt::Display| invalid(&format!("{}: {error}", file.display()));
    let certificates = CertificateDer::pem_file_iter(file).map_err(|error| unreadable(&error))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| unreadable(&error))?;
        roots.add(certificate).map_err(|error| unreadable(&error))?;
    }
    if roots.is_empty() { Err(unreadable(&"there is no certificate")) } else { Ok(roots) }
}

/// A check without the name, or no check.
#[derive(Debug)]
struct Lenient {
    /// Judges all but the name. `None`: each certificate is accepted.
    authority: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        stapled: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(strict) = &self.authority else { return Ok(ServerCertVerified::assertion()) };
        match strict.verify_server_cert(certificate, between, name, stapled, now) {
            // The name is looked at last, so all else is right.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            judged => judged,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Why a handshake failed, if its certificate was refused.
pub(super) fn refusal(error: &Error) -> Option<Fault> {
    let Error::InvalidCertificate(refused) = error else { return None };
    Some(match refused {
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => Fault::WrongName,
        CertificateError::UnknownIssuer => Fault::UnknownAuthority,
        _ => Fault::BadCertificate,
    })
}

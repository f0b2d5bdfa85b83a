"""Certificates for tests: those that an authority of a plant has signed, and one of an OPC UA client's own."""

import functools
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa


class Authority:
    """A certificate authority of a plant, and certificates that it has signed."""

    def __init__(self, folder, name, days=1):
        self._folder, self._name, self._days = folder, name, days
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.path, _ = written(folder, name, self._signed(name, self._key, is_authority=True), self._key)

    def certificate(self, name):
        """Return the files of a certificate for this machine, and of its private key."""
        key = ec.generate_private_key(ec.SECP256R1())
        return written(self._folder, name, self._signed(name, key, is_authority=False), key)

    def _signed(self, name, key, *, is_authority):
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, self._name)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=self._days))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            # Python 3.13 asks for what RFC 5280 demands.
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .add_extension(_usage(is_authority), critical=True)
        )
        if not is_authority:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _usage(is_authority):
    return x509.KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )


@functools.cache
def _key():
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def certificate(folder, name):
    """Return the files of a client's own certificate, and of its key, which all of them share: making one is slow."""
    key = _key()
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(f"urn:{name}")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return written(folder, name, made, key)


def written(folder, name, made, key):
    pem, private = folder / f"{name}.pem", folder / f"{name}-key.pem"
    pem.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return pem, private

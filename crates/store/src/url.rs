//! URLs of stores: the client that each scheme has, the prefix, and the name in messages.

use crate::error::{Error, Kind, Result};
use crate::folder::Folder;
use crate::profile;
use crate::settings::Settings;
use object_store::path::Path;
use object_store::{ClientOptions, ObjectStore, RetryConfig};
use std::sync::Arc;
use std::time::Duration;

/// A client with the prefix of a URL.
pub struct Opened {
    /// The client.
    pub client: Arc<dyn ObjectStore>,
    /// Where it is a folder, that.
    pub folder: Option<Folder>,
    /// Below which all keys are.
    pub prefix: Path,
    /// The store in messages, without the prefix.
    pub name: String,
}

/// Schemes and what their bucket is called in the text of the URL.
pub const SCHEMES: &str = "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, http://HOST/PATH, \
    https://HOST/PATH, file:///PATH or a path";

/// Opens a URL.
pub fn open(url: &str, settings: &Settings) -> Result<Opened> {
    let invalid = |rule: &str| Error::new(Kind::Invalid, format!("cannot open the store '{url}': {rule}"));
    let Some((scheme, rest)) = url.split_once("://") else { return folder(url, settings.makes_folder) };
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let prefix = Path::parse(prefix.trim_matches('/')).map_err(|_| invalid("the prefix is not a key"))?;
    if bucket.is_empty() && scheme != "file" {
        return Err(invalid("the bucket is missing"));
    }
    let name = format!("{scheme}://{bucket}");
    let failed = |error: object_store::Error| invalid(&error.to_string());
    // Where the process has chosen a provider already, that one serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client: Arc<dyn ObjectStore> = match scheme {
        "file" => return folder(rest, settings.makes_folder),
        "s3" | "s3a" => Arc::new(amazon(bucket, settings)?.build().map_err(failed)?),
        "gs" => Arc::new(google(bucket, settings).build().map_err(failed)?),
        "az" | "azure" | "abfs" => Arc::new(azure(bucket, settings).build().map_err(failed)?),
        "http" | "https" => {
            let builder = object_store::http::HttpBuilder::new().with_url(name.clone());
            let builder = builder.with_client_options(client_options(settings)).with_retry(retries(settings));
            Arc::new(builder.build().map_err(failed)?)
        }
        _ => return Err(invalid(&format!("no store has the scheme '{scheme}', there are {SCHEMES}"))),
    };
    Ok(Opened { client, folder: None, prefix, name })
}

/// A folder, which is made where it is missing, if that was asked for.
fn folder(path: &str, make: bool) -> Result<Opened> {
    let refused = |kind, rule: &dyn std::fmt::Display| {
        Error::new(kind, format!("cannot open the folder '{path}' as a store: {rule}"))
    };
    let failed = |error: &dyn std::fmt::Display| refused(Kind::Invalid, error);
    if make {
        std::fs::create_dir_all(path).map_err(|error| failed(&error))?;
    }
    let root = std::fs::canonicalize(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => refused(Kind::NotFound, &"there is none"),
        _ => failed(&error),
    })?;
    let client = object_store::local::LocalFileSystem::new_with_prefix(&root).map_err(|error| failed(&error))?;
    let client = Arc::new(client.with_fsync(true));
    let folder = Folder { root: root.clone(), client: client.clone() };
    Ok(Opened { client, folder: Some(folder), prefix: Path::default(), name: root.display().to_string() })
}

fn client_options(settings: &Settings) -> ClientOptions {
    let options = ClientOptions::new().with_allow_http(true).with_timeout_disabled();
    let quiet = settings.quiet_timeout.min(settings.give_up_after);
    options.with_connect_timeout(Duration::from_secs(10).min(quiet)).with_read_timeout(quiet)
}

/// The client's own retries. The calls of this crate retry around them.
fn retries(settings: &Settings) -> RetryConfig {
    RetryConfig { max_retries: 3, retry_timeout: settings.give_up_after, ..RetryConfig::default() }
}

fn amazon(bucket: &str, settings: &Settings) -> Result<object_store::aws::AmazonS3Builder> {
    let mut builder = object_store::aws::AmazonS3Builder::new().with_bucket_name(bucket);
    let (profile, exists) = profile::of(settings);
    if !exists {
        let named = settings.profile.as_deref().or(settings.variable("AWS_PROFILE")).unwrap_or_default();
        let rule = "neither ~/.aws/config nor ~/.aws/credentials has it";
        return Err(Error::new(Kind::Invalid, format!("cannot use the AWS profile '{named}': {rule}")));
    }
    // A profile that is asked for by an option comes before the variables, any other one behind them.
    let mut all: Vec<(String, String)> = profile.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    let variables = settings.variables.iter().filter(|(key, _)| key.starts_with("AWS_"));
    let variables = variables.map(|(key, value)| (key.to_ascii_lowercase(), value.clone()));
    match settings.profile {
        Some(_) => all.splice(0..0, variables).for_each(drop),
        None => all.extend(variables),
    }
    for (key, value) in all {
        let key =
            if key == "aws_endpoint_url_s3" || key == "aws_endpoint_url" { "aws_endpoint".to_owned() } else { key };
        if let Ok(key) = key.parse() {
            builder = builder.with_config(key, value);
        }
    }
    if let Some(region) = &settings.region {
        builder = builder.with_region(region);
    }
    if let Some(endpoint) = &settings.endpoint {
        builder = builder.with_endpoint(endpoint.trim_end_matches('/'));
    }
    // Objects are deleted one by one here; not every server knows the deletion of many, and a server that does not may
    // answer it with 404, which would pass for an object that is gone already.
    let builder = builder.with_disable_bulk_delete(true);
    Ok(builder.with_client_options(client_options(settings)).with_retry(retries(settings)))
}

fn google(bucket: &str, settings: &Settings) -> object_store::gcp::GoogleCloudStorageBuilder {
    let mut builder = object_store::gcp::GoogleCloudStorageBuilder::new().with_bucket_name(bucket);
    for (key, value) in &settings.variables {
        if let (true, Ok(key)) = (key.starts_with("GOOGLE_"), key.to_ascii_lowercase().parse()) {
            builder = builder.with_config(key, value);
        }
    }
    if let Some(endpoint) = &settings.endpoint {
        builder = builder.with_base_url(endpoint.trim_end_matches('/'));
    }
    builder.with_client_options(client_options(settings)).with_retry(retries(settings))
}

fn azure(container: &str, settings: &Settings) -> object_store::azure::MicrosoftAzureBuilder {
    let mut builder = object_store::azure::MicrosoftAzureBuilder::new().with_container_name(container);
    for (key, value) in &settings.variables {
        if let (true, Ok(key)) = (key.starts_with("AZURE_"), key.to_ascii_lowercase().parse()) {
            builder = builder.with_config(key, value);
        }
    }
    if let Some(endpoint) = &settings.endpoint {
        builder = builder.with_endpoint(endpoint.trim_end_matches('/').to_owned());
    }
    builder.with_client_options(client_options(settings)).with_retry(retries(settings))
}

//! The resource: attributes shared by all spans, metrics and log records. Pure.
//!
//! Names follow the semantic conventions 1.44:
//! <https://opentelemetry.io/docs/specs/semconv/resource/>

use opentelemetry::{Key, KeyValue};
use opentelemetry_sdk::Resource;

use super::settings::pairs;
use crate::config::Vars;
use crate::redaction::redacted;

/// Version of the OpenTelemetry SDK that aggregates metrics.
const SDK_VERSION: &str = "0.33.1";

/// Returns the attributes; `instance` identifies this start of the process.
///
/// The standard variables take precedence over the variables of the platform.
pub(super) fn resource(vars: &dyn Vars, instance: &str) -> Resource {
    let get = |name: &str| vars.get(name).filter(|text| !text.trim().is_empty());
    let site = get("WEBSITE_SITE_NAME");
    let mut attributes = vec![
        KeyValue::new("telemetry.sdk.name", "opentelemetry"),
        KeyValue::new("telemetry.sdk.language", "rust"),
        KeyValue::new("telemetry.sdk.version", SDK_VERSION),
        KeyValue::new("service.name", site.clone().unwrap_or_else(|| "highwater".to_owned())),
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("service.instance.id", instance.to_owned()),
    ];
    if let Some(site) = site {
        attributes.push(KeyValue::new("cloud.provider", "azure"));
        attributes.push(KeyValue::new("cloud.platform", "azure.functions"));
        attributes.push(KeyValue::new("faas.name", site));
    }
    let mut add = |key: &'static str, value: Option<String>| {
        attributes.extend(value.map(|value| KeyValue::new(key, value)));
    };
    add("faas.instance", get("WEBSITE_INSTANCE_ID"));
    add("cloud.region", get("REGION_NAME"));
    add("cloud.account.id", subscription(vars));
    add("cloud.resource_id", site_id(vars));
    attributes.extend(
        get("OTEL_RESOURCE_ATTRIBUTES")
            .iter()
            .flat_map(|text| pairs(text))
            .map(|(key, value)| KeyValue::new(Key::from(key), redacted(value))),
    );
    attributes.extend(get("OTEL_SERVICE_NAME").map(|name| KeyValue::new("service.name", name)));
    Resource::builder_empty().with_attributes(attributes).build()
}

/// Returns the subscription. App Service sets `WEBSITE_OWNER_NAME` to the subscription, a `+`, and the name of the
/// plan's webspace.
fn subscription(vars: &dyn Vars) -> Option<String> {
    let owner = vars.get("WEBSITE_OWNER_NAME")?;
    let (subscription, _) = owner.split_once('+')?;
    Some(subscription.to_owned()).filter(|text| !text.is_empty())
}

/// Returns the site's Azure resource id, if the platform provides its parts.
pub(super) fn site_id(vars: &dyn Vars) -> Option<String> {
    let (site, group) = (vars.get("WEBSITE_SITE_NAME")?, vars.get("WEBSITE_RESOURCE_GROUP")?);
    let subscription = subscription(vars)?;
    Some(format!(
        "/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.Web/sites/{site}"
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use opentelemetry::Value;

    use super::*;

    fn of(set: &[(&str, &str)]) -> Resource {
        let vars: BTreeMap<String, String> =
            set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        resource(&vars, "one")
    }

    fn get(resource: &Resource, key: &'static str) -> Option<String> {
        resource.get(&Key::from_static_str(key)).map(|value: Value| value.as_str().into_owned())
    }

    #[test]
    fn a_function_app_is_described_by_the_platform_variables() {
        let resource = of(&[
            ("WEBSITE_SITE_NAME", "app"),
            ("WEBSITE_RESOURCE_GROUP", "group"),
            ("WEBSITE_OWNER_NAME", "1111+group-westeuropewebspace"),
            ("WEBSITE_INSTANCE_ID", "abc"),
            ("REGION_NAME", "West Europe"),
        ]);
        for (key, expected) in [
            ("service.name", "app"),
            ("service.instance.id", "one"),
            ("faas.name", "app"),
            ("faas.instance", "abc"),
            ("cloud.provider", "azure"),
            ("cloud.platform", "azure.functions"),
            ("cloud.region", "West Europe"),
            ("cloud.account.id", "1111"),
            (
                "cloud.resource_id",
                "/subscriptions/1111/resourceGroups/group/providers/Microsoft.Web/sites/app",
            ),
        ] {
            assert_eq!(get(&resource, key).as_deref(), Some(expected), "{key}");
        }
    }

    #[test]
    fn the_standard_variables_override_the_platform() {
        let bare = of(&[]);
        assert_eq!(get(&bare, "service.name").as_deref(), Some("highwater"));
        assert_eq!(get(&bare, "cloud.provider"), None);
        let named = of(&[
            ("WEBSITE_SITE_NAME", "app"),
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name=a,deployment.environment.name=test%2C1"),
        ]);
        assert_eq!(get(&named, "service.name").as_deref(), Some("a"));
        assert_eq!(get(&named, "deployment.environment.name").as_deref(), Some("test,1"));
        let both =
            of(&[("OTEL_RESOURCE_ATTRIBUTES", "service.name=a"), ("OTEL_SERVICE_NAME", "b")]);
        assert_eq!(get(&both, "service.name").as_deref(), Some("b"));
    }
}

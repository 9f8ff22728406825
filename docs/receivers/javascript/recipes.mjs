// Recipe: hand the event's id on as the idempotency key of what is called downstream.
//
// For a target that supports such keys (payments, many brokers, HTTP APIs of your own): nothing has to
// be remembered here, since the target recognises a second delivery.
export function passOn(url) {
  return async (event) => {
    const response = await fetch(url, {
      method: "POST",
      headers: { "content-type": "application/json", "idempotency-key": event.id },
      body: JSON.stringify(event.after ?? event.pk),
    });
    if (!response.ok) throw new Error(`downstream answered ${response.status}`);
  };
}

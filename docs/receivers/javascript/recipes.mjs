// Recipe: hand the event's id on as the idempotency key of what is called downstream.
//
// For a target that supports such keys (payments, many brokers, HTTP APIs of your own): nothing has to
// be remembered here, since the target recognises a second delivery.
import { EventFailed } from "./receiver.mjs";

// Answers that are about the event. Any other failure is about the target, and the batch waits for it.
const OF_THE_EVENT = [400, 413, 422];

export function passOn(url) {
  return async (event) => {
    const response = await fetch(url, {
      method: "POST",
      headers: { "content-type": "application/json", "idempotency-key": event.id },
      body: JSON.stringify(event.after ?? event.pk),
    });
    if (OF_THE_EVENT.includes(response.status)) throw new EventFailed(`downstream answered ${response.status}`);
    if (!response.ok) throw new Error(`downstream answered ${response.status}`);
  };
}

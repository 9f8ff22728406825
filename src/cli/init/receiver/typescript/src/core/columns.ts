// Reads the columns of a row from JSON.

// A column is missing, or is not of the type that the table had when the types were written.
export class InvalidColumn extends Error {}

type Read<T> = (value: unknown) => T | undefined;

// Returns a column, converted.
export function column<T>(columns: Record<string, unknown>, name: string, read: Read<T>): T {
  const value = read(columns[name]);
  if (value === undefined) {
    const found = JSON.stringify(columns[name]) ?? "nothing";
    throw new InvalidColumn(`column \`${name}\` is ${found}; if the table has changed, update row.ts`);
  }
  return value;
}

// Returns a column that can be NULL, converted.
export function nullable<T>(columns: Record<string, unknown>, name: string, read: Read<T>): T | null {
  return columns[name] === null ? null : column(columns, name, read);
}

export const bool: Read<boolean> = (value) => (typeof value === "boolean" ? value : undefined);

export const integer: Read<number> = (value) => (Number.isSafeInteger(value) ? (value as number) : undefined);

export const float: Read<number> = (value) => (typeof value === "number" ? value : undefined);

export const text: Read<string> = (value) => (typeof value === "string" ? value : undefined);

export const base64: Read<Buffer> = (value) =>
  typeof value === "string" ? Buffer.from(value, "base64") : undefined;

export const object: Read<Record<string, unknown>> = (value) =>
  typeof value === "object" && value !== null && !Array.isArray(value)
    ? (value as Record<string, unknown>)
    : undefined;

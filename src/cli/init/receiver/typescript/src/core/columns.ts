// Reads the columns of a row from JSON.

// A column is missing, or is not of the type that the table had when the types were written.
export class InvalidColumn extends Error {}

type Read<T> = (value: unknown) => T | undefined;

// Parses JSON. An integer that a number would change becomes a bigint.
export function parse(json: string): unknown {
  // TypeScript does not know the third argument yet, the source of a value.
  const exact = (_: string, value: unknown, context?: { source?: string }) => {
    const source = context?.source ?? "";
    const isInexact = typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(source);
    return isInexact ? BigInt(source) : value;
  };
  return JSON.parse(json, exact);
}

// Returns a column, converted.
export function column<T>(columns: Record<string, unknown>, name: string, read: Read<T>): T {
  const value = read(columns[name]);
  if (value === undefined) {
    const show = (_: string, part: unknown) => (typeof part === "bigint" ? String(part) : part);
    const found = JSON.stringify(columns[name], show) ?? "nothing";
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

export const int64: Read<bigint> = (value) => {
  if (typeof value === "bigint") return BigInt.asIntN(64, value) === value ? value : undefined;
  return Number.isSafeInteger(value) ? BigInt(value as number) : undefined;
};

export const float: Read<number> = (value) =>
  // A large float may have been written without a fraction.
  typeof value === "number" || typeof value === "bigint" ? Number(value) : undefined;

export const text: Read<string> = (value) => (typeof value === "string" ? value : undefined);

export const base64: Read<Buffer> = (value) =>
  typeof value === "string" ? Buffer.from(value, "base64") : undefined;

export const object: Read<Record<string, unknown>> = (value) =>
  typeof value === "object" && value !== null && !Array.isArray(value)
    ? (value as Record<string, unknown>)
    : undefined;

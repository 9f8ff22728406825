using System.Globalization;
using System.Text.Json;

namespace Receiver.Core;

/// <summary>A column is missing, or is not of the type that the table had when the types were written.</summary>
public sealed class InvalidColumnException(string message, Exception? cause = null) : Exception(message, cause);

/// <summary>Reads the columns of a row from JSON.</summary>
public static class Column
{
    public static T Required<T>(JsonElement columns, string name, Func<JsonElement, T> read)
    {
        if (columns.ValueKind != JsonValueKind.Object || !columns.TryGetProperty(name, out JsonElement value))
        {
            throw new InvalidColumnException($"column `{name}` is missing; if the table has changed, update the types");
        }
        try
        {
            return read(value);
        }
        catch (Exception error) when (error is InvalidOperationException or FormatException or OverflowException)
        {
            throw new InvalidColumnException(
                $"column `{name}`: {error.Message} If the table has changed, update the types", error);
        }
    }

    public static T? Nullable<T>(JsonElement columns, string name, Func<JsonElement, T> read)
        where T : struct =>
        Required<T?>(columns, name, value => value.ValueKind == JsonValueKind.Null ? null : read(value));

    public static T? NullableReference<T>(JsonElement columns, string name, Func<JsonElement, T> read)
        where T : class =>
        Required<T?>(columns, name, value => value.ValueKind == JsonValueKind.Null ? null : read(value));

    public static bool AsBool(JsonElement value) => value.GetBoolean();

    public static byte AsByte(JsonElement value) => value.GetByte();

    public static short AsInt16(JsonElement value) => value.GetInt16();

    public static int AsInt32(JsonElement value) => value.GetInt32();

    public static long AsInt64(JsonElement value) => value.GetInt64();

    public static float AsSingle(JsonElement value) => value.GetSingle();

    public static double AsDouble(JsonElement value) => value.GetDouble();

    /// <summary>Decimals are text in JSON, so that no digit is lost.</summary>
    public static decimal AsDecimal(JsonElement value) =>
        decimal.Parse(AsText(value), NumberStyles.Number, CultureInfo.InvariantCulture);

    public static DateOnly AsDate(JsonElement value) =>
        DateOnly.ParseExact(AsText(value), "yyyy-MM-dd", CultureInfo.InvariantCulture);

    public static TimeOnly AsTime(JsonElement value) => TimeOnly.Parse(AsText(value), CultureInfo.InvariantCulture);

    /// <summary>The kind is unspecified, as the column has no offset.</summary>
    public static DateTime AsDateTime(JsonElement value) =>
        DateTime.Parse(AsText(value), CultureInfo.InvariantCulture, DateTimeStyles.None);

    public static DateTimeOffset AsDateTimeOffset(JsonElement value) =>
        DateTimeOffset.Parse(AsText(value), CultureInfo.InvariantCulture);

    public static Guid AsGuid(JsonElement value) => value.GetGuid();

    public static byte[] AsBytes(JsonElement value) => value.GetBytesFromBase64();

    public static string AsText(JsonElement value) =>
        value.GetString() ?? throw new InvalidOperationException("The value is null.");
}

package adapters

import "log/slog"

// Secret is a string that must not be seen: however it is printed, logged or
// encoded, three stars come out. Reveal gives the value, at the place of use.
type Secret string

const stars = "***"

// Reveal returns the value.
func (s Secret) Reveal() string { return string(s) }

func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return stars
}

// GoString keeps %#v from printing the value.
func (s Secret) GoString() string { return `"` + s.String() + `"` }

// MarshalText keeps encoders from writing the value.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue keeps slog from writing the value.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

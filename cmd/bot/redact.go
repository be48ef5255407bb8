package main

import (
	"encoding/base64"
	"encoding/hex"
	"log/slog"
	"net/url"
	"slices"
	"strings"
)

// shortestSecret is the length from which a secret is looked for in text: a
// shorter one would hit ordinary words.
const shortestSecret = 8

// newRedactor returns a function that puts three stars in place of every secret,
// also of its usual encodings.
func newRedactor(secrets []string) func(string) string {
	var forms []string
	for _, s := range secrets {
		if len(s) < shortestSecret {
			continue
		}
		reversed := []rune(s)
		slices.Reverse(reversed)
		forms = append(forms, s,
			base64.StdEncoding.EncodeToString([]byte(s)), base64.RawStdEncoding.EncodeToString([]byte(s)),
			base64.URLEncoding.EncodeToString([]byte(s)), base64.RawURLEncoding.EncodeToString([]byte(s)),
			hex.EncodeToString([]byte(s)), strings.ToUpper(hex.EncodeToString([]byte(s))),
			url.QueryEscape(s), url.PathEscape(s), string(reversed))
	}
	if len(forms) == 0 {
		return func(s string) string { return s }
	}
	slices.SortFunc(forms, func(a, b string) int { return len(b) - len(a) }) // a longer form before its beginning
	forms = slices.Compact(forms)
	pairs := make([]string, 0, 2*len(forms))
	for _, f := range forms {
		pairs = append(pairs, f, "***")
	}
	return strings.NewReplacer(pairs...).Replace
}

// redactAttr takes secrets out of log records.
func redactAttr(redact func(string) string) func([]string, slog.Attr) slog.Attr {
	return func(_ []string, a slog.Attr) slog.Attr {
		switch v := a.Value.Any().(type) {
		case string:
			a.Value = slog.StringValue(redact(v))
		case error:
			a.Value = slog.StringValue(redact(v.Error()))
		}
		return a
	}
}

// Package openai calls models through OpenAI's chat completions API, which most
// model servers speak: OpenAI itself, vLLM, llama.cpp, Ollama, OpenRouter and
// many gateways.
//
// One Stream is one HTTP request. Requests are encoded here and the answer's
// chunks are decoded here; go-openai stands between them, for addresses, keys
// and server-sent events. What servers get wrong in practice is dealt with in
// the file where it hurts: wire.go for requests, lines.go for the stream,
// assemble.go for the message, refusal.go for errors.
//
// Retries, fallbacks and budgets are not here, they are package engine's.
package openai

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	gopenai "github.com/sashabaranov/go-openai"

	"trill/engine/provider"
)

// Config says which model of which server is called.
type Config struct {
	// BaseURL is where the API begins, version included:
	// "http://127.0.0.1:11434/v1". Empty means OpenAI's own.
	BaseURL string
	// Key is sent as a bearer token; empty sends none. Printing a Config does
	// not show it.
	Key   string
	Model string
	// ContextWindow is how many tokens the model takes; 0 means not known. It
	// is not used here, only told.
	ContextWindow int
	// MaxOutput bounds the tokens of one answer, reasoning included; 0 leaves it
	// to the server.
	MaxOutput int

	// FirstByte is how long the server may take to answer with anything at all,
	// be it a keep-alive; 0 means 60 s.
	FirstByte time.Duration
	// Idle is the longest silence after that; 0 means 60 s.
	Idle time.Duration
	// Total bounds one call, first byte to last; 0 means 10 min.
	Total time.Duration

	// Client is used for its transport; redirects are never followed. Nil means
	// one with the defaults of net/http.
	Client *http.Client
}

const (
	defaultBaseURL = "https://api.openai.com/v1"
	defaultSilence = time.Minute
	defaultTotal   = 10 * time.Minute
)

// String shows the configuration without the key.
func (c Config) String() string {
	return fmt.Sprintf("openai model %q at %s", c.Model, shownURL(cmp.Or(c.BaseURL, defaultBaseURL)))
}

// GoString keeps %#v from printing the key.
func (c Config) GoString() string { return c.String() }

// LogValue keeps slog from writing the key.
func (c Config) LogValue() slog.Value { return slog.StringValue(c.String()) }

// MarshalText keeps encoders from writing the key.
func (c Config) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// shownURL is a URL without what could be secret in it.
func shownURL(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return "(not a URL)"
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// Validate returns every fault of the configuration, each after its key in the
// configuration file.
func (c Config) Validate() error {
	var errs []error
	if c.Model == "" {
		errs = append(errs, errors.New("model: is required"))
	}
	if c.BaseURL != "" {
		u, err := url.Parse(c.BaseURL)
		switch {
		case err != nil: // its text would repeat the URL
			errs = append(errs, errors.New("base_url: is not a URL"))
		case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
			errs = append(errs, errors.New("base_url: must begin with https:// or http:// and name a host"))
		case u.User != nil:
			errs = append(errs, errors.New("base_url: must not hold a password; use api_key"))
		case u.RawQuery != "" || u.Fragment != "":
			errs = append(errs, errors.New("base_url: must end with its path, without ? or #"))
		}
	}
	if strings.ContainsFunc(c.Key, func(r rune) bool { return r <= ' ' || r > '~' }) {
		errs = append(errs, errors.New("api_key: has a space, a line break or a sign that no key has"))
	}
	for _, n := range []struct {
		key  string
		less bool
	}{
		{"context_window", c.ContextWindow < 0},
		{"max_output", c.MaxOutput < 0},
		{"first_byte", c.FirstByte < 0},
		{"idle", c.Idle < 0},
		{"total", c.Total < 0},
	} {
		if n.less {
			errs = append(errs, fmt.Errorf("%s: must not be negative", n.key))
		}
	}
	return errors.Join(errs...)
}

// Provider calls one model of one server. It may be used from several
// goroutines at once.
type Provider struct {
	conf Config // without Key
	key  func() string
	http *http.Client
}

var _ provider.Provider = (*Provider)(nil)

// New returns a provider for the model in conf. It does not connect.
func New(conf Config) (*Provider, error) {
	if err := conf.Validate(); err != nil {
		return nil, fmt.Errorf("openai config: %w", err)
	}
	key := conf.Key
	conf.Key = ""
	conf.BaseURL = cmp.Or(conf.BaseURL, defaultBaseURL)
	conf.FirstByte = cmp.Or(conf.FirstByte, defaultSilence)
	conf.Idle = cmp.Or(conf.Idle, defaultSilence)
	conf.Total = cmp.Or(conf.Total, defaultTotal)

	client := new(http.Client)
	if conf.Client != nil {
		*client = *conf.Client
	} else if t, ok := http.DefaultTransport.(*http.Transport); ok {
		t = t.Clone()
		t.MaxIdleConnsPerHost = 64 // one host, many threads
		client.Transport = t
	}
	client.Timeout = 0 // the stalls above are the finer rule
	// A redirect would take the prompt, and on the way to a sub-domain the key
	// too, to an address that nobody configured.
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	// The key is kept behind a func, since fmt prints nothing of one.
	return &Provider{conf: conf, key: func() string { return key }, http: client}, nil
}

// String says what is called, without the key.
func (p *Provider) String() string { return p.conf.String() }

// ContextWindow is how many tokens the model takes, as configured; 0 when not
// known.
func (p *Provider) ContextWindow() int { return p.conf.ContextWindow }

// Stream implements [provider.Provider].
func (p *Provider) Stream(ctx context.Context, req provider.Request, onText func(string)) (*provider.Response, error) {
	body, err := encode(&p.conf, &req)
	if err != nil {
		return nil, &provider.Error{Class: provider.ClassRequest, Err: err}
	}
	x := p.exchange(ctx, body)
	defer x.close()

	// go-openai refuses some models' requests on its own, by lists that age. It
	// gets a request that it knows nothing about; the exchange sends the real
	// one in its place.
	stream, err := x.client.CreateChatCompletionStream(x.ctx, gopenai.ChatCompletionRequest{Model: "-"})
	if err != nil {
		return nil, x.fault(err)
	}
	defer stream.Close()

	a := assembler{onText: onText, model: p.conf.Model}
	for {
		data, err := stream.RecvRaw()
		if err == nil {
			if err := a.add(data); err != nil {
				return nil, a.spent(x.fault(err))
			}
			if a.finish != "" {
				x.hurry()
			}
			continue
		}
		if a.finish == "" || ctx.Err() != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("the stream ended before the answer did")
			}
			return nil, a.spent(x.fault(err))
		}
		if e, ok := errors.AsType[*provider.Error](err); ok {
			return nil, a.spent(e)
		}
		// The message is complete. Whether the usage came, or the line was cut
		// just before its end, is no reason to pay for it again.
		if errors.Is(err, io.EOF) {
			x.drain()
		}
		resp, err := a.response()
		if err != nil {
			return nil, a.spent(err)
		}
		return resp, nil
	}
}

// Models asks the server for the ids of its models, sorted. An error is a
// [provider.Error], or ctx's.
func (p *Provider) Models(ctx context.Context) ([]string, error) {
	x := p.exchange(ctx, nil)
	defer x.close()
	list, err := x.client.ListModels(x.ctx)
	if err != nil {
		return nil, x.fault(err)
	}
	ids := make([]string, 0, len(list.Models))
	for _, m := range list.Models {
		if m.ID != "" {
			ids = append(ids, m.ID)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// Package nextcloudtalk is the bot API of Nextcloud Talk: the server posts signed
// webhooks to us, we post signed messages and reactions to it.
//
// What the API cannot do shapes the adapter. A bot can neither edit nor delete
// what it posted, nor read the history, and the server does not tell the id of
// a message it took: whether one was posted, only a user's account can tell,
// where one is configured. Nobody can @-mention a bot. Before Talk 23 the actor
// of a reaction is the author of the message and not who reacted, so the sender
// of a reaction is never told.
//
// The package was written against Talk 21 and reads what Talk 20 to 25 send.
package nextcloudtalk

import (
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"unicode"

	"trill/adapters"
)

// Platform is the platform's name in the configuration, the webhook path and the
// logs.
const Platform adapters.Platform = "nextcloud-talk"

const (
	// defaultMaxLength is the limit of the server in code points.
	defaultMaxLength = 32_000
	// minMaxLength keeps parts readable.
	minMaxLength = 200

	minSecret, maxSecret = 40, 128 // as `occ talk:bot:install` demands
)

// Config is one bot on one Nextcloud server.
type Config struct {
	// URL is the address of the Nextcloud server, with its sub-folder if there
	// is one: "https://cloud.example.com".
	URL string `toml:"url"`
	// Secret is the one given to `occ talk:bot:install`, 40 to 128 characters.
	Secret adapters.Secret `toml:"secret"`
	// WebhookURL is the address given to `occ talk:bot:install`, letter for
	// letter. The bot's own id follows from it, by which replies to the bot are
	// known; empty: the id is learned when the bot is added to a room.
	WebhookURL string `toml:"webhook_url"`
	// BotName is the name given to `occ talk:bot:install`; empty: "Trill". As
	// long as the own id is not known, a reply to a bot of this name counts as
	// a reply to us.
	BotName string `toml:"bot_name"`
	// Account is a user of the server who is a participant of the bot's rooms,
	// and AppPassword one of its app passwords, made in its personal settings
	// under Security. They serve only to look whether an answer was posted when
	// the connection broke, never to post. Empty: nobody looks.
	Account     string          `toml:"account"`
	AppPassword adapters.Secret `toml:"app_password"`
	// Backend is the server's own idea of its address (`overwrite.cli.url`)
	// when it is not url; webhooks have to name it.
	Backend string `toml:"backend"`
	// AnyBackend takes webhooks whatever server they name. The signature still
	// has to match.
	AnyBackend bool `toml:"any_backend"`
	// Host is the Host header to send, when url is an internal address that is
	// not in the server's trusted_domains.
	Host string `toml:"host"`
	// MaxLength is how long a message may be, in code points; 0: 32000.
	MaxLength int `toml:"max_length"`
}

// Validate returns every fault, each starting with its key.
func (c Config) Validate() error {
	var faults []error
	fault := func(key, format string, args ...any) {
		faults = append(faults, fmt.Errorf(key+": "+format, args...))
	}
	if err := baseURL(c.URL); err != nil {
		fault("url", "%w", err)
	}
	switch n := len(c.Secret); {
	case n == 0:
		fault("secret", "is missing; it is the one given to occ talk:bot:install")
	case n < minSecret || n > maxSecret:
		fault("secret", "has %d characters, must have %d to %d", n, minSecret, maxSecret)
	}
	if c.WebhookURL != "" {
		if u, err := url.Parse(c.WebhookURL); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			fault("webhook_url", "must be the http or https address given to occ talk:bot:install")
		}
	}
	switch {
	case c.Account == "" && c.AppPassword != "":
		fault("account", "is missing; it is the user that app_password belongs to")
	case c.Account != "" && c.AppPassword == "":
		fault("app_password", "is missing; the account makes one in its settings, under Security")
	}
	if strings.ContainsFunc(c.Account, func(r rune) bool { return r == ':' || unicode.IsControl(r) }) {
		fault("account", "must be a user's login name, which has no colon")
	}
	if c.Backend != "" {
		if err := baseURL(c.Backend); err != nil {
			fault("backend", "%w", err)
		}
	}
	if strings.ContainsAny(c.Host, "/@ \t\r\n") {
		fault("host", "must be a host name, with a port if need be")
	}
	if c.MaxLength != 0 && (c.MaxLength < minMaxLength || c.MaxLength > defaultMaxLength) {
		fault("max_length", "is %d, must be %d to %d", c.MaxLength, minMaxLength, defaultMaxLength)
	}
	return errors.Join(faults...)
}

// baseURL checks the address of a server. Its errors do not repeat the address,
// which may hold a password.
func baseURL(s string) error {
	if s == "" {
		return errors.New("is missing; it is the address of the server, as in https://cloud.example.com")
	}
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return errors.New("is not an address")
	case u.Scheme != "http" && u.Scheme != "https":
		return errors.New("must start with https:// or http://")
	case u.Hostname() == "":
		return errors.New("has no host")
	case u.User != nil:
		return errors.New("must not contain a user or password")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.HasSuffix(s, "#"):
		return errors.New("must end with the host or a folder, without ? or #")
	case strings.Contains(u.Path, "/ocs/") || strings.HasSuffix(u.Path, "/index.php"):
		return errors.New("must be the address of the server, not of a page on it")
	}
	return nil
}

// origin is the scheme, host and port of an address, without a port that the
// scheme implies. It is empty for what is no http or https address.
func origin(s string) string {
	u, err := url.Parse(s)
	if err != nil || u.Hostname() == "" || u.User != nil {
		return ""
	}
	host := strings.ToLower(u.Hostname())
	switch port := u.Port(); {
	case u.Scheme != "http" && u.Scheme != "https":
		return ""
	case port == "", u.Scheme == "http" && port == "80", u.Scheme == "https" && port == "443":
		return u.Scheme + "://" + host
	default:
		return u.Scheme + "://" + host + ":" + port
	}
}

// Adapter is one bot on one Nextcloud server.
type Adapter struct {
	name    adapters.Channel
	conf    Config
	ocs     string // address of the server's API, without a slash at the end
	base    string // address of the bot API, with one
	caps    string // address of the capabilities
	client  *http.Client
	log     *slog.Logger
	backend string // origin that webhooks have to name; empty: any

	macs sync.Pool // of *signer, keyed with the secret

	limit atomic.Int64           // code points of a message; the server may have told us a lower one
	self  atomic.Pointer[string] // own actor id, nil while it is not known
	seen  atomic.Pointer[string] // the last Backend header, so that the usual one is parsed once
	blind blind                  // what the account could not see
}

var (
	_ adapters.ChannelAdapter  = (*Adapter)(nil)
	_ adapters.WebhookReceiver = (*Adapter)(nil)
	_ adapters.Reactor         = (*Adapter)(nil)
	_ adapters.Finder          = (*Adapter)(nil)
	_ adapters.Checker         = (*Adapter)(nil)
)

// New returns the adapter of the bot in conf. It does not connect. Of the client
// only the transport is used: redirects are not followed, and the time limit is
// our own.
func New(name adapters.Channel, conf Config, client *http.Client, log *slog.Logger) (*Adapter, error) {
	if err := conf.Validate(); err != nil {
		return nil, fmt.Errorf("channel %s: %w", name, err)
	}
	if conf.BotName == "" {
		conf.BotName = "Trill"
	}
	if conf.MaxLength == 0 {
		conf.MaxLength = defaultMaxLength
	}
	if client == nil {
		client = http.DefaultClient
	}
	ocs := strings.TrimRight(conf.URL, "/") + "/ocs/v2.php"
	a := &Adapter{
		name: name,
		conf: conf,
		ocs:  ocs,
		base: ocs + "/apps/spreed/api/v1/bot/",
		caps: ocs + "/cloud/capabilities?format=json",
		client: &http.Client{
			Transport:     client.Transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		log: log.With("platform", Platform, "channel", name),
	}
	a.macs.New = func() any { return &signer{Hash: hmac.New(sha256.New, []byte(conf.Secret.Reveal()))} }
	a.limit.Store(int64(conf.MaxLength))
	if !conf.AnyBackend {
		a.backend = origin(conf.URL)
		if conf.Backend != "" {
			a.backend = origin(conf.Backend)
		}
	}
	if conf.WebhookURL != "" {
		id := BotID(conf.WebhookURL)
		a.self.Store(&id)
	}
	return a, nil
}

// Platform returns [Platform].
func (a *Adapter) Platform() adapters.Platform { return Platform }

// About tells the model where it is.
func (a *Adapter) About() string {
	return "You write in Nextcloud Talk. It renders Markdown: bold, italics, strikethrough, lists, task lists, quotes, " +
		"links, headings, inline code and fenced code. Older servers do not render tables, so use lists; HTML is shown as " +
		"plain text, images are not shown. Your messages cannot be edited, deleted or streamed: an answer appears once, " +
		"whole. People cannot @-mention you, and no @name you write notifies anybody. You see a file that somebody " +
		"shares as its name, type and size, not its content. You cannot upload files."
}

// BotID returns the actor id that a server gives the bot installed with the
// webhook address.
func BotID(webhookURL string) string {
	sum := sha1.Sum([]byte(webhookURL))
	return "bots/bot-" + hex.EncodeToString(sum[:])
}

// SignRequest returns what a request is signed with, in either direction: the
// lower-case hexadecimal HMAC-SHA256 of random and signed. What is signed is the
// raw body of a webhook, but only the text of a message and only the emoji of a
// reaction.
func SignRequest(secret, random string, signed []byte) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(random))
	mac.Write(signed)
	return hex.EncodeToString(mac.Sum(nil))
}

// signer makes MACs. What it hands to the hash is part of it, because that would
// be allocated each time.
type signer struct {
	hash.Hash
	random [randomLength]byte
	sum    [sha256.Size]byte
}

// sign returns the MAC of random and signed.
func (a *Adapter) sign(random string, signed []byte) [sha256.Size]byte {
	s := a.macs.Get().(*signer)
	defer a.macs.Put(s)
	s.Reset()
	s.Write(s.random[:copy(s.random[:], random)])
	s.Write(signed)
	s.Sum(s.sum[:0])
	return s.sum
}

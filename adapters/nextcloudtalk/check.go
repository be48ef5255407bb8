package nextcloudtalk

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"trill/adapters"
)

const (
	checkTimeout = 15 * time.Second
	// maxCapabilities is more than servers with many apps answer.
	maxCapabilities = 1 << 20
	// reactionsFixed is the first Talk whose reactions name who reacted.
	reactionsFixed = 23
)

// Check asks the server, without credentials, what it can do, and then whether it
// takes the account, where there is one. A lower limit of the length of messages
// than configured is kept for [Adapter.Split].
func (a *Adapter) Check(ctx context.Context) []adapters.Finding {
	caps, reached := a.capabilities(ctx)
	findings := []adapters.Finding{reached}
	if reached.OK {
		findings = append(findings, a.checkTalk(caps)...)
		if a.conf.Account != "" {
			findings = append(findings, a.checkAccount(ctx))
		}
	}
	return append(findings, a.checkInstall()...)
}

// capabilities is what the server tells everybody.
type capabilities struct {
	OCS struct {
		Meta struct {
			Code int `json:"statuscode"`
		} `json:"meta"`
		Data struct {
			Version struct {
				String string `json:"string"`
			} `json:"version"`
			Capabilities struct {
				Spreed *talkCapabilities `json:"spreed"`
			} `json:"capabilities"`
		} `json:"data"`
	} `json:"ocs"`
}

type talkCapabilities struct {
	Features []string `json:"features"`
	Version  string   `json:"version"`
	Config   struct {
		Chat struct {
			MaxLength int `json:"max-length"`
		} `json:"chat"`
	} `json:"config"`
}

// capabilities fetches them and reports whether the server was reached.
func (a *Adapter) capabilities(ctx context.Context) (capabilities, adapters.Finding) {
	var caps capabilities
	found := adapters.Finding{What: "server"}
	fail := func(advice, format string, args ...any) (capabilities, adapters.Finding) {
		found.Detail, found.Advice = fmt.Sprintf(format, args...), advice
		return caps, found
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.caps, nil)
	if err != nil {
		return fail("check url", "%v", err)
	}
	a.address(req)
	resp, err := a.client.Do(req)
	if err != nil {
		return fail(adviceFor(err), "%v", plain(err))
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxCapabilities))
	switch code := resp.StatusCode; {
	case err != nil:
		return fail("try again", "the answer broke off: %v", plain(err))
	case code >= 300 && code < 400:
		return fail("set url to where the server really is", "redirected to %q", origin(resp.Header.Get("Location")))
	case code == http.StatusBadRequest:
		return fail("add the host of url to trusted_domains in the server's config.php, or set host to a name that is there", "the server refuses this host name")
	case code == http.StatusServiceUnavailable:
		return fail("wait, or end it with occ maintenance:mode --off", "the server is in maintenance mode or overloaded")
	case code == http.StatusTooManyRequests:
		return fail("wait 30 minutes, or run occ security:bruteforce:reset with the address of this machine", "the server has locked this address out")
	case code == http.StatusNotFound:
		return fail("set url to the address of Nextcloud, with its folder if there is one", "no Nextcloud at this address")
	case code != http.StatusOK:
		return fail("look at the server's log", "%s", resp.Status)
	}
	if err := json.Unmarshal(raw, &caps); err != nil || caps.OCS.Meta.Code == 0 {
		return fail("set url to the address of Nextcloud, with its folder if there is one", "what answers there is not Nextcloud")
	}
	found.OK = true
	found.Detail = "Nextcloud " + clean(caps.OCS.Data.Version.String, maxName)
	if req.URL.Scheme == "http" && !isLocal(req.URL.Hostname()) {
		found.Detail += ", not encrypted"
		found.Advice = "use https, or others on the way can read the messages"
	}
	return caps, found
}

// adviceFor says what to do when the server cannot be reached.
func adviceFor(err error) string {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		if _, ok := errors.AsType[x509.HostnameError](err); ok {
			return "the certificate is for another name: set url to that name"
		}
		return "if your own authority issued the certificate, name its file in the environment variable SSL_CERT_FILE"
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return "check the host name in url, and that this machine can look it up"
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "check that no firewall stands between this machine and the server"
	}
	return "check url, and that the server is up and reachable from this machine"
}

func isLocal(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && (ip.IsLoopback() || ip.IsPrivate())
}

func (a *Adapter) checkTalk(caps capabilities) []adapters.Finding {
	spreed := caps.OCS.Data.Capabilities.Spreed
	switch {
	case spreed == nil:
		return []adapters.Finding{{What: "talk", Detail: "the server does not have the app Talk, or hides it",
			Advice: "install it: occ app:install spreed"}}
	case !slices.Contains(spreed.Features, "bots-v1"):
		return []adapters.Finding{{What: "talk", Detail: "Talk " + clean(spreed.Version, maxName) + " has no bots",
			Advice: "update Talk to 17.1 or newer"}}
	}
	talk := adapters.Finding{OK: true, What: "talk", Detail: "Talk " + clean(spreed.Version, maxName) + " with bots"}
	major, _, _ := strings.Cut(spreed.Version, ".")
	if n, err := strconv.Atoi(major); err == nil && n < reactionsFixed {
		talk.Detail += "; reactions do not say who reacted, so they decide nothing"
	}
	length := adapters.Finding{OK: true, What: "message length"}
	switch n := spreed.Config.Chat.MaxLength; {
	case n < minMaxLength:
		length.Detail = fmt.Sprintf("not told by the server, %d code points used", a.limit.Load())
	case n < a.conf.MaxLength:
		a.lower(int64(n))
		length.Detail = fmt.Sprintf("the server takes %d code points, used instead of max_length", n)
	default:
		length.Detail = fmt.Sprintf("%d code points", a.limit.Load())
	}
	return []adapters.Finding{talk, length}
}

// checkInstall looks at what only the bot's installation on the server could
// confirm, which nobody without an account may ask about.
func (a *Adapter) checkInstall() []adapters.Finding {
	install := adapters.Finding{OK: true, What: "webhook",
		Detail: "only a message can show that webhooks arrive",
		Advice: "install the bot with the features webhook, response and reaction, never with event: with event the server sends no webhook at all; " +
			"then enable it in the room and write something there",
	}
	replies := adapters.Finding{OK: true, What: "replies"}
	switch {
	case a.conf.WebhookURL != "":
		replies.Detail = "known by " + BotID(a.conf.WebhookURL)
	case a.self.Load() != nil:
		replies.Detail = "known by " + *a.self.Load() + ", learned from the server"
	default:
		replies.Detail = fmt.Sprintf("known by the bot's name %q until the bot is added to a room", clean(a.conf.BotName, maxName))
		replies.Advice = "set webhook_url to the address given to occ talk:bot:install, so that replies to the bot are known for certain"
	}
	backend := adapters.Finding{OK: true, What: "backend", Detail: "webhooks must name " + a.backend}
	if a.backend == "" {
		backend.Detail = "webhooks may name any server (any_backend)"
	}
	secret := adapters.Finding{OK: true, What: "secret", Detail: fmt.Sprintf("%d characters", len(a.conf.Secret))}
	return []adapters.Finding{secret, install, replies, backend}
}

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/berth-scheduler/berth/internal/cli"
)

// gatewayLabels select the gateway's pods, as deploy/ labels them.
const gatewayLabels = "app.kubernetes.io/name=gateway,app.kubernetes.io/part-of=berth"

// kubeCluster finds Berth in the cluster of a kubeconfig.
type kubeCluster struct {
	kubeconfig *genericclioptions.ConfigFlags
	namespace  string // where Berth is
	access     *cli.Access
}

// find connects to a gateway that is ready, through the API server.
func (k *kubeCluster) find(ctx context.Context) (cli.Gateway, error) {
	config, err := k.config()
	if err != nil {
		return cli.Gateway{}, fmt.Errorf("there is no --server, and %w", err)
	}
	g, err := k.gateway(ctx, config)
	if err != nil {
		return cli.Gateway{}, err
	}
	token := ""
	if g.authenticates { // nobody else is to see it
		if token, err = bearerToken(ctx, config); err != nil {
			return cli.Gateway{}, fmt.Errorf("read the kubeconfig's token: %w", err)
		}
	}
	way, err := openWay(config, g.pod, g.port)
	if err != nil {
		return cli.Gateway{}, fmt.Errorf("reach pod %s/%s through the API server at %s: %w%s", k.namespace, g.pod.Name, config.Host, err, advice(err, "create pods/portforward", k.namespace))
	}
	conn, closeConn, err := k.access.Through(cli.Tunnel{
		Dial: way.dial, Host: net.JoinHostPort("gateway."+k.namespace+".svc", strconv.Itoa(int(g.port))), TLS: g.tls, Token: token,
	})
	if err != nil {
		return cli.Gateway{}, errors.Join(err, way.close())
	}
	name := fmt.Sprintf("pod %s/%s", k.namespace, g.pod.Name)
	if g.authenticates && token == "" {
		name += " (which is shown no token: the kubeconfig's user has none)"
	}
	return cli.Gateway{Name: name, Conn: conn, Close: func() error { return errors.Join(closeConn(), way.close()) }}, nil
}

// config is how to reach the API server.
func (k *kubeCluster) config() (*rest.Config, error) {
	config, err := k.kubeconfig.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("the kubeconfig names no cluster: %w", err)
	}
	if config.Host == noKubeconfig {
		if raw, err := k.kubeconfig.ToRawKubeConfigLoader().RawConfig(); err == nil && len(raw.Clusters) == 0 {
			return nil, errors.New("no kubeconfig that names a cluster: set KUBECONFIG, or give --kubeconfig")
		}
	}
	return config, nil
}

// noKubeconfig is what clientcmd takes for the API server where nothing names one.
const noKubeconfig = "http://localhost:8080"

// gatewayPod is a pod of the gateway, and what its command line says of how it serves.
type gatewayPod struct {
	pod           *v1.Pod
	port          int32
	tls           bool
	authenticates bool // by the API server's tokens
}

// gateway finds the pod to talk to.
func (k *kubeCluster) gateway(ctx context.Context, config *rest.Config) (gatewayPod, error) {
	client, err := corev1.NewForConfig(config)
	if err != nil {
		return gatewayPod{}, err
	}
	pods, err := client.Pods(k.namespace).List(ctx, metav1.ListOptions{LabelSelector: gatewayLabels})
	if err != nil {
		return gatewayPod{}, fmt.Errorf("look for Berth's gateway in namespace %s of %s: %w%s", k.namespace, config.Host, err, advice(err, "list pods", k.namespace))
	}
	return choose(pods.Items, k.namespace)
}

// advice says what to do about an error of the API server.
func advice(err error, permission, namespace string) string {
	if apierrors.IsForbidden(err) {
		return fmt.Sprintf("\nyou need the permission to %s in namespace %s, or the address of a gateway for --server", permission, namespace)
	}
	return "\n--server reaches a gateway directly"
}

// choose returns the first pod that is ready, by name.
func choose(pods []v1.Pod, namespace string) (gatewayPod, error) {
	if len(pods) == 0 {
		return gatewayPod{}, fmt.Errorf("there is no pod with the labels %s in namespace %s: --berth-namespace says where else Berth is, --server where its gateway serves",
			gatewayLabels, namespace)
	}
	slices.SortFunc(pods, func(a, b v1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	for i := range pods {
		if ready(&pods[i]) {
			return describe(&pods[i])
		}
	}
	return gatewayPod{}, fmt.Errorf("none of the gateway's %d pods is ready: kubectl -n %s get pods -l %s says more", len(pods), namespace, gatewayLabels)
}

func ready(pod *v1.Pod) bool {
	return pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.PodReady && c.Status == v1.ConditionTrue
	})
}

// describe reads how a pod serves from its command line and its port named grpc.
func describe(pod *v1.Pod) (gatewayPod, error) {
	g := gatewayPod{pod: pod}
	for _, c := range pod.Spec.Containers {
		for _, p := range c.Ports {
			if p.Name != "grpc" {
				continue
			}
			g.port = p.ContainerPort
			line := slices.Concat(c.Command, c.Args)
			g.tls = slices.ContainsFunc(line, func(arg string) bool { return strings.HasPrefix(arg, "--tls-cert") })
			g.authenticates = slices.Contains(line, "--authenticate=kubernetes")
			return g, nil
		}
	}
	return gatewayPod{}, fmt.Errorf("pod %s/%s has no port named grpc: give --server", pod.Namespace, pod.Name)
}

// bearerToken returns the token that the kubeconfig's user shows to the API server, wherever it comes from: the file itself,
// another file, or a program. "" means that the user is known by something else.
func bearerToken(ctx context.Context, config *rest.Config) (string, error) {
	var shown string
	transport, err := rest.HTTPWrappersForConfig(config, roundTripper(func(r *http.Request) (*http.Response, error) {
		shown = r.Header.Get("Authorization")
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, nil
	}))
	if err != nil {
		return "", err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://token.invalid/", nil)
	if err != nil {
		return "", err
	}
	response, err := transport.RoundTrip(request) // it goes nowhere
	if err != nil {
		return "", err
	}
	if err := response.Body.Close(); err != nil {
		return "", err
	}
	token, ok := strings.CutPrefix(shown, "Bearer ")
	if !ok {
		return "", nil
	}
	return token, nil
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

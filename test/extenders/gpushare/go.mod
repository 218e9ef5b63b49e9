// Module gpushare pins Alibaba's gpushare-scheduler-extender, which is built from source by internal/kubetest for "make extenders".
//
// It is a module of its own, with no Go files: the extender is of the time before Go had modules and names no versions itself. Those of Kubernetes,
// and of what it is made of, are what its Gopkg.lock says, but for golang.org/x and reflect2, which have to be newer for today's Go,
// and for what the tests of these ask for.
module github.com/berth-scheduler/berth/test/extenders/gpushare

go 1.26.0

tool github.com/AliyunContainerService/gpushare-scheduler-extender/cmd

require (
	github.com/AliyunContainerService/gpushare-scheduler-extender v0.2.0 // indirect
	github.com/comail/colog v0.0.0-20160416085026-fba8e7b1f46c // indirect
	github.com/davecgh/go-spew v1.1.1 // indirect
	github.com/ghodss/yaml v1.0.0 // indirect
	github.com/gogo/protobuf v1.1.1 // indirect
	github.com/golang/glog v0.0.0-20160126235308-23def4e6c14b // indirect
	github.com/golang/groupcache v0.0.0-20181024230925-c65c006176ff // indirect
	github.com/golang/protobuf v1.5.0 // indirect
	github.com/google/btree v1.0.0 // indirect
	github.com/google/go-cmp v0.7.0 // indirect
	github.com/google/gofuzz v0.0.0-20170612174753-24818f796faf // indirect
	github.com/googleapis/gnostic v0.2.0 // indirect
	github.com/gregjones/httpcache v0.0.0-20170728041850-787624de3eb7 // indirect
	github.com/hashicorp/golang-lru v0.5.0 // indirect
	github.com/imdario/mergo v0.3.6 // indirect
	github.com/json-iterator/go v1.1.5 // indirect
	github.com/julienschmidt/httprouter v1.2.0 // indirect
	github.com/modern-go/concurrent v0.0.0-20180306012644-bacd9c7ef1dd // indirect
	github.com/modern-go/reflect2 v1.0.2 // indirect
	github.com/onsi/ginkgo v1.16.5 // indirect
	github.com/onsi/gomega v1.44.0 // indirect
	github.com/peterbourgon/diskv v2.0.1+incompatible // indirect
	github.com/spf13/pflag v1.0.3 // indirect
	github.com/stretchr/testify v1.12.1 // indirect
	golang.org/x/crypto v0.58.0 // indirect
	golang.org/x/net v0.61.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/term v0.47.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	golang.org/x/time v0.15.0 // indirect
	google.golang.org/protobuf v1.36.7 // indirect
	gopkg.in/inf.v0 v0.9.1 // indirect
	gopkg.in/yaml.v2 v2.3.0 // indirect
	k8s.io/api v0.0.0-20180712090710-2d6f90ab1293 // indirect
	k8s.io/apimachinery v0.0.0-20180904193909-def12e63c512 // indirect
	k8s.io/client-go v8.0.0+incompatible // indirect
	k8s.io/kube-openapi v0.0.0-20180411164004-f442ecb314a3 // indirect
	k8s.io/kubernetes v1.12.1 // indirect
)

package fleet

// Profile is a configuration in which Yoda places the pods that name no scheduler, by all features, as docs/gpu.md has it; A10s are cards of level High.
const Profile = `
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
  plugins:
    queueSort: {enabled: [{name: Yoda}], disabled: [{name: "*"}]}
    multiPoint:
      enabled:
      - {name: Yoda}
      - {name: YodaBandwidth}
      - {name: YodaClock}
      - {name: YodaCore}
      - {name: YodaPower}
      - {name: YodaFreeMemory, weight: 2}
      - {name: YodaTotalMemory}
      - {name: YodaAllocate, weight: 3}
      - {name: YodaActual, weight: 2}
  pluginConfig:
  - name: Yoda
    args: {levels: [{model: "NVIDIA A10", level: High}]}
`
